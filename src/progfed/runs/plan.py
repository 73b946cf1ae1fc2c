"""What a run will cost, before anything is trained: the same messages and FLOPs that the run then counts."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from progfed.client.kernels import one_thread
from progfed.codec import Codec, Schema
from progfed.costs import Cost, Costs, PhaseCost
from progfed.costs.devices import on_device
from progfed.costs.published import paper_bytes
from progfed.devices import Device
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.turns import earliest
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe
from progfed.schedule import within
from progfed.server.budget import Codecs, codecs_of_phases
from progfed.server.checks import check
from progfed.wire.message import message_estimate, message_size

Plan = dict[str, Any]
COSTS = ("down_bytes", "up_bytes", "paper_bytes", "flops")


Known = dict[str, Costs]
"""What was counted before, by the description of the model: runs of an experiment have most of it in common."""


def costs_of(experiment: Experiment, known: Known) -> Costs:
    """The costs of the experiment's model, from what is known, or new and known from now on."""
    method = experiment.recipe.method
    key = json.dumps([describe(experiment.model), describe(method)])
    return known.setdefault(key, Costs(experiment.make_model(), method))


@one_thread()  # a second one only spins: operators on one or two examples are too small to share
def plan(experiment: Experiment, known: Known | None = None, *, device: Device | None = None) -> Plan:
    """Rounds, parameters, bytes down and up, and FLOPs, per stage and in total; peak memory, the highest of each.

    Bytes are exact unless `exact` is false, where they are a bound. Where the length of messages depends on the numbers
    in them, `estimate` has the bytes to be expected, if all tensors hold numbers of one size: real messages are often
    shorter. FLOPs take every client to hold the average number of examples, or `one_example` where nobody says how many
    there are; memory is that of a step on a whole batch. Where the data say before they are made that some clients
    are too weak for a stage, costs are `expected`: averages over cohorts. Where a policy may end stages early, every
    stage is taken to last as long as it may; `earliest` is the total if each ended as early as it may. `device` is what
    the run takes on such a device, or on that of the data where all clients have the same, and the `share` of rounds in
    which a client takes part on average.
    """
    known = {} if known is None else known
    costs = costs_of(experiment, known)
    model, recipe = costs.model, with_exact_buffers(experiment.recipe, costs.model)
    experiment = replace(experiment, recipe=recipe)
    deepest: Sequence[int] = getattr(experiment.data, "deepest", ())
    clients: int = experiment.clients or getattr(experiment.data, "clients", 0)
    check(model, recipe, deepest, clients=clients)
    codecs = codecs_of_phases(recipe, costs, clients or math.inf)
    stages: dict[int, Plan] = {}
    total = Cost()
    for index, phase in enumerate(recipe.schedule):
        counts, memory = costs.phase(phase), costs.memory(phase, recipe.local)
        spent = _average(deepest or [model.stages], partial(_spent, experiment, index, costs, codecs[index]))
        row = stages[phase.stage] = {**_row(phase.stage), **stages.get(phase.stage, {}), **_sizes(counts)}
        row["warmup_rounds" if phase.warmup else "rounds"] += phase.rounds
        for cost in ("down_bytes", "up_bytes", "flops"):
            row[cost] += getattr(spent, cost)
        row["memory_bytes"] = max(row["memory_bytes"], memory.peak)
        total += spent
    rounds = sum(phase.rounds for phase in recipe.schedule)
    counted = {cost: getattr(total, cost) for cost in COSTS}
    weak = bool(deepest) and min(deepest) < max(stages)
    further: Plan = {"expected": True} if weak else {}
    if device := device or _common_device(experiment):
        depth = max(deepest, default=model.stages)
        examples = average_examples(experiment)
        spent_there = on_device(device, recipe, costs, examples=examples, depth=depth, codecs=codecs)
        further["device"] = {**spent_there, "share": recipe.asked(clients) / clients if clients else None}
    if not _knows_examples(experiment):
        further["one_example"] = True
    if not (recipe.upward.exact and recipe.downward.exact):
        further["estimate"] = _estimate(experiment, deepest or [model.stages], costs, codecs)
    if recipe.growth is not None:
        cut = replace(recipe, schedule=earliest(recipe.schedule, recipe.growth), growth=None)
        further["earliest"] = plan(replace(experiment, recipe=cut), known)["total"]
    return {
        "experiment": experiment.name,
        "run": experiment.run,
        "exact": recipe.upward.exact and recipe.downward.exact and not weak,
        "stages": [stages[stage] for stage in sorted(stages)],
        "total": {"rounds": rounds, **counted, "memory_bytes": max(row["memory_bytes"] for row in stages.values())},
        **further,
    }


def _average(deepest: Sequence[int], spend: Callable[[int], Cost]) -> Cost:
    """What clients of these depths spend on average, where each trains the largest sub-model that it can."""
    shares = Counter(deepest)
    each = {depth: asdict(spend(depth)) for depth in shares}
    sums = {cost: sum(each[depth][cost] * share for depth, share in shares.items()) for cost in COSTS}
    half, clients = shares.total() // 2, shares.total()
    return Cost(**{cost: (value + half) // clients for cost, value in sums.items()})


def _estimate(
    experiment: Experiment, deepest: Sequence[int], costs: Costs, codecs: Sequence[Counter[Codecs]]
) -> dict[str, int]:
    """The bytes that all rounds are expected to take in each direction, where lengths depend on the numbers."""
    spend = [partial(_spent, experiment, index, costs, own, size=message_estimate) for index, own in enumerate(codecs)]
    total = sum((_average(deepest, one) for one in spend), start=Cost())
    return {"down_bytes": total.down_bytes, "up_bytes": total.up_bytes}


def _spent(
    experiment: Experiment,
    index: int,
    costs: Costs,
    codecs: Counter[Codecs],
    depth: int,
    *,
    size: Callable[[Codec, Schema], int] = message_size,
) -> Cost:
    """What all rounds of phase `index` cost, if every client can train up to stage `depth`.

    `codecs` are those of the rounds; `size` gives the length of a message: what it is at most, or what is to be
    expected.
    """
    recipe, rounds = experiment.recipe, experiment.recipe.schedule[index].rounds
    cost = costs.phase(within(recipe.schedule[index], depth))
    asked = recipe.asked(experiment.clients or math.inf)
    # of an asynchronous run a cohort leaves at first, and then as many as have come back
    each = asked if recipe.asynchronous is None else recipe.asynchronous.size
    first = (asked - each) * size(recipe.downward, cost.down)
    bill = partial(paper_bytes, recipe, index, depth=depth, costs=costs)
    bills = [bill(number, closes=number == rounds - 1) for number in range(rounds)]
    return Cost(
        down_bytes=first + each * sum(times * size(down, cost.down) for (down, _), times in codecs.items()),
        up_bytes=each * sum(times * size(up, cost.up) for (_, up), times in codecs.items()),
        paper_bytes=min(each, recipe.cohort) * sum(bills),
        flops=round(cost.flops * each * rounds * recipe.local.seen(average_examples(experiment))),
    )


def plans(chosen: Sequence[Experiment], family: Sequence[Experiment], *, device: Device | None = None) -> list[Plan]:
    """The plans of these runs, each with its cost relative to its baseline, found in the family of all runs."""
    runs = {experiment.run: experiment for experiment in family}
    made: dict[str, Plan] = {}
    known: Known = {}

    def planned(run: str) -> Plan:
        if run not in runs:
            raise UsageError(f"the baseline {run!r} is not among the runs {', '.join(runs)}")
        if run not in made:
            made[run] = plan(runs[run], known, device=device)
        return made[run]

    return [
        {
            **planned(experiment.run),
            "relative": relative(planned(experiment.run), planned(experiment.baseline or experiment.run)),
        }
        for experiment in chosen
    ]


def relative(ours: Plan, baseline: Plan) -> dict[str, float]:
    """The fractions of the baseline's bytes (both directions), paper accounting, FLOPs, highest memory and hours.

    `estimated_bytes` is there where the length of our messages depends on the numbers in them.
    """
    mine, other = ours["total"], baseline["total"]
    expected: Plan = baseline.get("estimate") or other
    timed = "device" in ours and "device" in baseline
    seconds = [one["device"]["total"]["seconds"] for one in (ours, baseline)] if timed else []
    return {
        **({"device_seconds": seconds[0] / seconds[1]} if seconds and seconds[1] else {}),
        "bytes": _both(mine) / _both(other),
        **({"estimated_bytes": _both(ours["estimate"]) / _both(expected)} if "estimate" in ours else {}),
        "paper_bytes": mine["paper_bytes"] / other["paper_bytes"],
        "flops": mine["flops"] / other["flops"],
        "memory": mine["memory_bytes"] / other["memory_bytes"],
    }


def _both(cost: Plan) -> int:
    """Bytes down and up."""
    return int(cost["down_bytes"] + cost["up_bytes"])


def average_examples(experiment: Experiment) -> float:
    """The average number of examples of a client: declared, or of data that are given as a value; 1 where neither."""
    if experiment.clients and experiment.examples:
        return experiment.examples / experiment.clients
    return statistics.fmean(experiment.data.sizes) if isinstance(experiment.data, FederatedData) else 1.0


def _knows_examples(experiment: Experiment) -> bool:
    """Whether it is known before the data are made how many examples there are."""
    return bool(experiment.clients and experiment.examples) or isinstance(experiment.data, FederatedData)


def _common_device(experiment: Experiment) -> Device | None:
    """The device that all clients have, where the data are given as a value and say so."""
    devices = set(getattr(experiment.data, "devices", ()))
    return devices.pop() if len(devices) == 1 else None


def _sizes(counts: PhaseCost) -> Plan:
    """The size of a stage's sub-model: that of the stage's last phase, which has no head of another stage."""
    return {"parameters": counts.parameters, "head_share": counts.head_share}


def _row(stage: int) -> Plan:
    return {
        "stage": stage,
        "rounds": 0,
        "warmup_rounds": 0,
        "parameters": 0,
        "head_share": 0.0,
        "down_bytes": 0,
        "up_bytes": 0,
        "flops": 0,
        "memory_bytes": 0,
    }
