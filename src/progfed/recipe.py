"""How to train: everything that the server and its clients agree on, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from torch.nn import functional

from progfed.codec import Codec, Float
from progfed.errors import UsageError
from progfed.rate import Constant, Rate
from progfed.schedule import Schedule
from progfed.server import ServerOptimizer, fedavg

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Local:
    """Local training of one client in one round: SGD, stateless unless asked otherwise.

    `prox` is FedProx's mu in mu/2 ||w - w0||^2. Momentum starts at zero in each round.
    """

    epochs: int = 1
    batch: int = 20
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    loss: Loss = functional.cross_entropy

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise UsageError(f"a client needs at least 1 epoch and a batch of 1, not {self.epochs} and {self.batch}")
        if min(self.momentum, self.weight_decay, self.prox) < 0:
            raise UsageError("momentum, weight decay and prox cannot be negative")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A schedule, and how each of its rounds goes.

    `cohort` clients are drawn in each round. The mean is weighted by their examples, or `uniform`. `up` and `down` are
    the codecs of the two directions. With `feedback` a client adds what its codec lost to its next update; with `delta`
    a client that took part in the round before is sent only the compressed change of the model it holds.
    A round needs `min_updates` valid updates, or training stops.
    """

    schedule: Schedule
    cohort: int
    rate: Rate = field(default_factory=lambda: Constant(0.1))
    local: Local = field(default_factory=Local)
    server: ServerOptimizer = field(default_factory=fedavg)
    weighting: Literal["examples", "uniform"] = "examples"
    up: Codec = field(default_factory=Float)
    down: Codec = field(default_factory=Float)
    feedback: bool = False
    delta: bool = False
    min_updates: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.schedule:
            raise UsageError("a recipe needs a schedule with at least one phase")
        if not 1 <= self.min_updates <= self.cohort:
            raise UsageError(f"min_updates must be 1 to the cohort's {self.cohort}, not {self.min_updates}")
        if self.weighting not in ("examples", "uniform"):
            raise UsageError(f"weighting is by 'examples' or 'uniform', not {self.weighting!r}")
