"""What a run will cost, before anything is trained: the same messages and FLOPs that the run then counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from progfed.errors import UsageError
from progfed.experiment import Experiment
from progfed.federate import paper_bytes, turns
from progfed.flops import PhaseCost, phase_cost
from progfed.protocol import Cost, message_size
from progfed.schedule import Phase

Plan = dict[str, Any]


def plan(experiment: Experiment) -> Plan:
    """Rounds, parameters, bytes down and up, and FLOPs, per stage and in total.

    Bytes are exact unless `exact` is false, where they are a bound; FLOPs take every client to hold the average number
    of examples.
    """
    model, recipe = experiment.make_model(), experiment.recipe
    model.check(recipe.schedule)
    costs: dict[Phase, PhaseCost] = {}
    stages: dict[int, Plan] = {}
    total = Cost()
    for turn in turns(recipe.schedule):
        phase = turn.phase
        if phase not in costs:
            costs[phase] = phase_cost(model, phase)
        spent = Cost(
            down_bytes=recipe.cohort * message_size(recipe.down, costs[phase].down),
            up_bytes=recipe.cohort * message_size(recipe.up, costs[phase].up),
            paper_bytes=recipe.cohort * paper_bytes(turn, costs[phase], recipe),
            flops=round(costs[phase].flops * recipe.cohort * recipe.local.epochs * average_examples(experiment)),
        )
        row = stages.setdefault(phase.stage, _row(phase.stage, costs[phase].parameters))
        row["warmup_rounds" if phase.warmup else "rounds"] += 1
        for key in ("down_bytes", "up_bytes", "flops"):
            row[key] += getattr(spent, key)
        total += spent
    rounds = sum(phase.rounds for phase in recipe.schedule)
    counted = {key: value for key, value in asdict(total).items() if key != "seconds"}
    return {
        "experiment": experiment.name,
        "run": experiment.run,
        "exact": recipe.up.exact and recipe.down.exact,
        "stages": [stages[stage] for stage in sorted(stages)],
        "total": {"rounds": rounds, **counted},
    }


def plans(chosen: Sequence[Experiment], family: Sequence[Experiment]) -> list[Plan]:
    """The plans of these runs, each with its cost relative to its baseline, found in the family of all runs."""
    runs = {experiment.run: experiment for experiment in family}
    made: dict[str, Plan] = {}

    def planned(run: str) -> Plan:
        if run not in runs:
            raise UsageError(f"the baseline {run!r} is not among the runs {', '.join(runs)}")
        if run not in made:
            made[run] = plan(runs[run])
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
