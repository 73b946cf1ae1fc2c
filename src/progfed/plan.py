"""What a run will cost, before anything is trained: the same messages and FLOPs that the run then counts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from progfed.errors import UsageError
from progfed.experiment import Experiment, describe
from progfed.federate import check, paper_bytes
from progfed.flops import PhaseCost, phase_cost
from progfed.protocol import Cost, message_size
from progfed.schedule import Phase

Plan = dict[str, Any]


Known = dict[tuple[str, Phase], PhaseCost]
"""Costs of phases that were counted before, by model."""


def plan(experiment: Experiment, known: Known | None = None) -> Plan:
    """Rounds, parameters, bytes down and up, and FLOPs, per stage and in total.

    Bytes are exact unless `exact` is false, where they are a bound; FLOPs take every client to hold the average number
    of examples.
    """
    model, recipe = experiment.make_model(), experiment.recipe
    check(model, recipe)
    known = {} if known is None else known
    name = json.dumps(describe(experiment.model))
    stages: dict[int, Plan] = {}
    total = Cost()
    for phase in recipe.schedule:
        key = name, replace(phase, rounds=1)
        if key not in known:
            known[key] = phase_cost(model, phase)
        spent = _spent(phase, known[key], experiment)
        row = stages.setdefault(phase.stage, _row(phase.stage, known[key].parameters))
        row["warmup_rounds" if phase.warmup else "rounds"] += phase.rounds
        for cost in ("down_bytes", "up_bytes", "flops"):
            row[cost] += getattr(spent, cost)
        total += spent
    rounds = sum(phase.rounds for phase in recipe.schedule)
    counted = {cost: value for cost, value in asdict(total).items() if cost != "seconds"}
    return {
        "experiment": experiment.name,
        "run": experiment.run,
        "exact": recipe.up.exact and recipe.down.exact,
        "stages": [stages[stage] for stage in sorted(stages)],
        "total": {"rounds": rounds, **counted},
    }


def _spent(phase: Phase, cost: PhaseCost, experiment: Experiment) -> Cost:
    """What all rounds of a phase cost."""
    recipe = experiment.recipe
    visits = recipe.asked(experiment.clients or math.inf) * phase.rounds
    return Cost(
        down_bytes=visits * message_size(recipe.down, cost.down),
        up_bytes=visits * message_size(recipe.up, cost.up),
        paper_bytes=recipe.cohort * sum(paper_bytes(phase, number, cost, recipe) for number in range(phase.rounds)),
        flops=round(cost.flops * visits * recipe.local.epochs * average_examples(experiment)),
    )


def plans(chosen: Sequence[Experiment], family: Sequence[Experiment]) -> list[Plan]:
    """The plans of these runs, each with its cost relative to its baseline, found in the family of all runs."""
    runs = {experiment.run: experiment for experiment in family}
    made: dict[str, Plan] = {}
    known: Known = {}

    def planned(run: str) -> Plan:
        if run not in runs:
            raise UsageError(f"the baseline {run!r} is not among the runs {', '.join(runs)}")
        if run not in made:
            made[run] = plan(runs[run], known)
        return made[run]

    return [
        {
            **planned(experiment.run),
            "relative": relative(planned(experiment.run), planned(experiment.baseline or experiment.run)),
        }
        for experiment in chosen
    ]


def relative(ours: Plan, baseline: Plan) -> dict[str, float]:
    """The fractions of the baseline's bytes (both directions), paper accounting and FLOPs."""
    mine, other = ours["total"], baseline["total"]
    return {
        "bytes": (mine["down_bytes"] + mine["up_bytes"]) / (other["down_bytes"] + other["up_bytes"]),
        "paper_bytes": mine["paper_bytes"] / other["paper_bytes"],
        "flops": mine["flops"] / other["flops"],
    }


def average_examples(experiment: Experiment) -> float:
    """The declared average number of examples of a client; 1 where the experiment does not declare its population."""
    return experiment.examples / experiment.clients if experiment.clients else 1.0


def _row(stage: int, parameters: int) -> Plan:
    return {
        "stage": stage,
        "rounds": 0,
        "warmup_rounds": 0,
        "parameters": parameters,
        "down_bytes": 0,
        "up_bytes": 0,
        "flops": 0,
    }
