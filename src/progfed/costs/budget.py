"""Stage lengths from a budget: how long the cheap stages must last for a run to cost no more than a share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from progfed.blocks import Progressive
from progfed.costs.phase import PhaseCost, phase_cost
from progfed.errors import UsageError
from progfed.schedule import Phase, Schedule, progressive


def within_budget(
    model: Progressive,
    rounds: int,
    *,
    budget: float,
    cost: Literal["bytes", "flops"] = "bytes",
    hold: bool = True,
    overlap: int = 2,
) -> Schedule:
    """`progressive` over so many rounds at no more than `budget` of what end-to-end training costs in as many.

    The stages before the last are equally long, as by the paper's rule, and no longer than the budget demands: whatever
    it leaves goes to the full model.

    Args:
        model: The model that grows.
        rounds: T, the number of rounds.
        budget: The share, below 1, of the costs of end-to-end training over as many rounds.
        cost: What is counted: bytes of the messages, in floats, or FLOPs.
        hold: As for `progressive`.
        overlap: As for `progressive`.

    Returns:
        A schedule: a tuple of phases.

    >>> from torch import nn, zeros
    >>> layers = (lambda: nn.Linear(8, 8), lambda: nn.Linear(8, 8))
    >>> growing = Progressive(layers, (lambda: nn.Linear(8, 1),) * 2, zeros(1, 8))
    >>> [phase.rounds for phase in within_budget(growing, 20, budget=0.75)]
    [11, 2, 7]
    """
    if not budget < 1:
        raise UsageError(f"a budget is a share of what end-to-end training costs, less than 1, not {budget}")
    known: dict[Phase, int] = {}
    whole = rounds * _spent((Phase(model.stages, 1),), model, cost, known)
    early, most = model.stages - 1, (rounds - 1) // max(1, model.stages - 1)
    least = math.inf
    for length in range(1, most + 1) if early else ():
        lengths = (*[length] * early, rounds - length * early)
        schedule = progressive(rounds, stages=model.stages, lengths=lengths, hold=hold, overlap=overlap)
        share = _spent(schedule, model, cost, known) / whole
        if share <= budget + 1e-9:
            return schedule
        least = min(least, share)
    raise UsageError(
        f"{model.name} in {model.stages} stages cannot be trained in {rounds} rounds for {budget:.0%} of the "
        f"{cost} of end-to-end training: "
        + ("it does not grow" if least == math.inf else f"give a budget of {math.ceil(100 * least)}% or more")
        + ", or cut it where less comes first"
    )


def _spent(schedule: Schedule, model: Progressive, cost: str, known: dict[Phase, int]) -> int:
    """What a schedule costs, in numbers sent or FLOPs; `known` has the costs of a round of each phase seen so far."""
    total = 0
    for phase in schedule:
        one = replace(phase, rounds=1, hold=False)
        if one not in known:
            known[one] = _of_a_round(phase_cost(model, one), cost)
        total += phase.rounds * known[one]
    return total


def _of_a_round(phase: PhaseCost, cost: str) -> int:
    if cost not in ("bytes", "flops"):
        raise UsageError(f"a budget is of 'bytes' or 'flops', not {cost!r}")
    both = (*phase.down.values(), *phase.up.values())
    return phase.flops if cost == "flops" else sum(math.prod(shape) for shape in both)
