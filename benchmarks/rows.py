"""What is measured: each row of the benchmark is a function from options to numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import scale
from variants import VARIANTS, Running
from workloads import WORKLOADS

Numbers = dict[str, Any]
LOUD = 0.05
"""A round during which others took more of the machine than this is run again, if patience allows."""


@dataclass(frozen=True)
class Options:
    """How often, how patiently, and against whom; after `budget` seconds a row begins no further turn."""

    turns: int = 3
    patience: int = 2
    budget: float = 120.0
    peers: tuple[str, ...] = ("plain", "flower", "pfl")


def quiet_round(running: Running, patience: int) -> Numbers:
    """A round that others disturbed little: the least disturbed of a few."""
    best = running.round()
    for _ in range(patience):
        if best["others"] <= LOUD:
            break
        best = min(best, running.round(), key=lambda told: told["others"])
    return best


def take_turns(running: list[Running], options: Options, *, began: float) -> dict[str, list[Numbers]]:
    """Rounds of all variants, one after the other, and again."""
    told: dict[str, list[Numbers]] = {each.name: [] for each in running}
    for turn in range(options.turns):
        if turn and time.perf_counter() - began > options.budget:
            break
        for each in running[turn % len(running) :] + running[: turn % len(running)]:
            late = time.perf_counter() - began > options.budget
            told[each.name].append(quiet_round(each, 0 if late else options.patience))
    return told


def workload(name: str) -> Callable[[Options], Numbers]:
    """One round of a workload by every variant, and by its operators alone."""

    def row(options: Options) -> Numbers:
        load, running, began = WORKLOADS[name], [], time.perf_counter()
        try:
            for variant in ("progfed", *options.peers, "floor"):
                running.append(Running(VARIANTS[variant], name))
            running[0].round()  # the others have warmed up by themselves, or do not care
            told = take_turns(running, options, began=began)
            found = {each.name: _summary(each, told[each.name]) for each in running}
        finally:
            for each in running:
                each.__exit__(None, None, None)
        for variant, rounds in told.items():
            for one in rounds:
                if variant != "floor":
                    assert (one["examples"], one["steps"]) == (load.seen, load.steps), (variant, one)
        ours = [one["seconds"] for one in told["progfed"]]
        for variant, rounds in told.items():
            found[variant]["ratio"] = statistics.median(
                one["seconds"] / mine for one, mine in zip(rounds, ours, strict=True)
            )
        # what other programs took is no cost of ours: the share is that of the time the workers really had
        found["progfed"]["outside"] = statistics.median(
            1 - (1 - one["outside"]) / (1 - one["others"]) for one in told["progfed"]
        )
        found["progfed"]["gflop"] = told["progfed"][0]["gflop"]
        return {"title": load.title, "clients": load.clients, "variants": found}

    return row


def _summary(running: Running, rounds: list[Numbers]) -> Numbers:
    megabytes, processes = running.memory()
    return {
        "variant": running.title,
        "seconds": statistics.median(one["seconds"] for one in rounds),
        "all": [one["seconds"] for one in rounds],
        "others": max(one["others"] for one in rounds),
        "start": running.start,
        "megabytes": megabytes,
        "processes": processes,
    }


def stages(name: str, count: int) -> Callable[[Options], Numbers]:
    """Seconds and FLOPs of a round in every stage, and of the paper's schedule, against the full model."""

    def row(options: Options) -> Numbers:
        with_turns = replace(options, turns=min(2, options.turns))
        seconds, gflop = [], []
        for stage in range(1, count + 1):
            with Running(VARIANTS["progfed"], name, "--stage", str(stage)) as running:
                running.round()
                told = take_turns([running], with_turns, began=time.perf_counter())["progfed"]
            seconds.append(statistics.median(one["seconds"] for one in told))
            gflop.append(told[0]["gflop"])
        shares = [1 / (2 * count)] * (count - 1) + [(count + 1) / (2 * count)]
        saved = {
            kind: 1 - sum(share * value for share, value in zip(shares, values, strict=True)) / values[-1]
            for kind, values in (("seconds", seconds), ("gflop", gflop))
        }
        return {"seconds": seconds, "gflop": gflop, "saved": saved, "kept": saved["seconds"] / saved["gflop"]}

    return row


ROWS: dict[str, Callable[[Options], Numbers]] = {
    **{name: workload(name) for name in WORKLOADS},
    "stages-W1": stages("W1", 3),
    "stages-W2": stages("W2", 4),
    "stages-W3": stages("W3", 4),
    "population": lambda options: scale.population(),
    "leaks": lambda options: scale.leaks(),
    "costs": lambda options: scale.costs(),
}
