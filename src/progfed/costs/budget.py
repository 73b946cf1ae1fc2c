"""Stage lengths from a budget: how long the cheap stages must last for a run to cost no more than a share."""

from __future__ import annotations

import math
from typing import Literal

from progfed.blocks import Progressive
from progfed.costs.phase import PhaseCost, phase_cost
from progfed.errors import UsageError
from progfed.schedule import Phase, Schedule, progressive


def within_budget(
    model: Progressive, rounds: int, *, budget: float, cost: Literal["bytes", "flops"] = "bytes", hold: bool = True
) -> Schedule:
    """`progressive` over so many rounds at no more than `budget` of what end-to-end training costs in as many.

    The stages before the last are equally long, as by the paper's rule, and no longer than the budget demands: whatever
    it leaves goes to the full model. `cost` says what is counted: bytes of the messages, in floats, or FLOPs.

    >>> from torch import nn, zeros
    >>> layers = (lambda: nn.Linear(8, 8), lambda: nn.Linear(8, 8))
    >>> growing = Progressive(layers, (lambda: nn.Linear(8, 1),) * 2, zeros(1, 8))
    >>> [phase.rounds for phase in within_budget(growing, 20, budget=0.75)]
    [11, 9]
    """
    spent = [_cost(phase_cost(model, Phase(stage, 1)), cost) for stage in range(1, model.stages + 1)]
    shares = [one / spent[-1] for one in spent[:-1]]
    if not budget < 1:
        raise UsageError(f"a budget is a share of what end-to-end training costs, less than 1, not {budget}")
    saved = sum(1 - share for share in shares)  # by one round of each early stage
    early = math.ceil(rounds * (1 - budget) / saved - 1e-9) if saved > 0 else rounds
    last = rounds - early * len(shares)
    if last < 1:
        most = (rounds - 1) // len(shares) if shares else 0
        least = 1 - most * saved / rounds
        raise UsageError(
            f"{model.name} in {model.stages} stages cannot be trained in {rounds} rounds for {budget:.0%} of the "
            f"{cost} of end-to-end training: give a budget of {least:.0%} or more, or cut it where less comes first"
        )
    return progressive(rounds, stages=model.stages, lengths=(*[early] * len(shares), last), hold=hold)


def _cost(phase: PhaseCost, cost: str) -> int:
    if cost not in ("bytes", "flops"):
        raise UsageError(f"a budget is of 'bytes' or 'flops', not {cost!r}")
    both = (*phase.down.values(), *phase.up.values())
    return phase.flops if cost == "flops" else sum(math.prod(shape) for shape in both)
