"""When to grow: the paper fixes T_s before training; a policy here ends a stage when training it no longer helps.

A policy sees the loss and the step of every round, and says when the stage ends. The two policies here turn what they
see into one number, the signal, which falls while the stage still learns. A stage ends when the signal has stopped
falling: when its mean over the last `window` rounds is not lower, by a share of `tolerance`, than its mean over the
`window` rounds before. The rounds of the schedule are the longest that a phase may last, and `least` is the shortest.
Warm-up is never cut. The last phase gets the rounds that the others did not use, so that the total is still T; with
`keep_total=False` they are not used at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from torch import Tensor

from progfed.errors import UsageError
from progfed.recipe.aggregate import l2
from progfed.tensors import Tensors


@dataclass(frozen=True)
class Watch:
    """What a policy has seen so far: the lengths of the phases before, and the last signals of the running one.

    `drift` and `path` are what a signal may need besides: any tensors by name, and a number. All of it is in the
    checkpoint, so that a resumed run decides as it would have without the interruption.
    """

    lengths: tuple[int, ...] = ()
    signal: tuple[float, ...] = ()
    drift: Tensors = field(default_factory=dict)
    path: float = 0.0


class Growth(Protocol):
    """A policy that says when to grow, as a value in a recipe; what it has seen is in a `Watch`, not in the policy."""

    @property
    def reads_loss(self) -> bool:
        """Whether it looks at the loss of the clients, about which a run with privacy must not tell."""
        ...

    @property
    def shortest(self) -> int:
        """The fewest rounds that a phase can last, by which costs are planned."""
        ...

    @property
    def keep_total(self) -> bool:
        """Whether the last phase gets the rounds that the others did not use."""
        ...

    def see(self, watch: Watch, loss: float, step: Mapping[str, Tensor]) -> Watch:
        """What the policy knows after a round.

        Args:
            watch: What it knew before.
            loss: The training loss of the round.
            step: How the server changed the newest block in the round.
        """
        ...

    def ends(self, watch: Watch, rounds: int) -> bool:
        """Whether the phase is over.

        Args:
            watch: What was seen in its rounds.
            rounds: How many of its rounds were trained.
        """
        ...


class _Stalling:
    """The rule of the policies below: a phase ends when the signal has stopped falling, after `least` rounds."""

    least: int
    window: int
    tolerance: float

    @property
    def shortest(self) -> int:
        return max(self.least, 2 * self.window)

    def ends(self, watch: Watch, rounds: int) -> bool:
        return rounds >= self.least and stalled(self, watch)


@dataclass(frozen=True, kw_only=True)
class Plateau(_Stalling):
    """Grow when the training loss of the rounds has levelled off.

    That is the mean of what clients say. With a robust aggregate it is their median, which no minority of
    them can move to where it wants growth to be.

    >>> Plateau(window=2).see(Watch(signal=(3.0, 2.0, 1.5, 1.25)), 1.0, {}).signal
    (2.0, 1.5, 1.25, 1.0)
    """

    reads_loss: ClassVar[bool] = True
    least: int = 4
    window: int = 3
    tolerance: float = 0.03
    keep_total: bool = True

    def __post_init__(self) -> None:
        _check(self)

    def see(self, watch: Watch, loss: float, step: Mapping[str, Tensor]) -> Watch:
        return _seen(self, watch, loss)


@dataclass(frozen=True, kw_only=True)
class Movement(_Stalling):
    """Grow when the newest block has stopped getting anywhere: distance over path length, both fading by `memory`.

    With steps u_i of the block the signal is |sum w_i u_i| / sum w_i |u_i|, w_i = memory^(t-i): 1 for a straight way,
    sqrt((1-memory) / (1+memory)) for steps in random directions. It has no unit: the learning rate, the size of a block
    and the scale of its weights cancel, as they would not in the length of a step or its ratio to the weights. It
    starts at 1 by definition, falls as the steps disagree, and levels off at the share of them that is still common. A
    block that always went straight on would level off at 1 and grow too: the rule asks whether anything still changes.
    """

    reads_loss: ClassVar[bool] = False
    least: int = 4
    window: int = 3
    tolerance: float = 0.03
    keep_total: bool = True
    memory: float = 0.8

    def __post_init__(self) -> None:
        _check(self)
        if not 0 < self.memory < 1:
            raise UsageError(f"the memory of a movement is between 0 and 1, not {self.memory}")

    def see(self, watch: Watch, loss: float, step: Mapping[str, Tensor]) -> Watch:
        length = l2(step)
        if not length > 0:  # nobody trained the block in this round: nothing was learnt about it
            return watch
        old = watch.drift
        drift = {name: self.memory * old[name] + value if name in old else value for name, value in step.items()}
        path = self.memory * watch.path + length
        return replace(_seen(self, watch, l2(drift) / path), drift=drift, path=path)


def stalled(growth: _Stalling, watch: Watch) -> bool:
    """Whether the signal has stopped falling: its last mean over a window is hardly lower than the one before.

    >>> stalled(Plateau(window=1, tolerance=0.1), Watch(signal=(1.0, 0.95)))
    True
    >>> stalled(Plateau(window=1, tolerance=0.1), Watch(signal=(1.0, 0.85)))
    False
    """
    if len(watch.signal) < 2 * growth.window:
        return False
    before, after = watch.signal[-2 * growth.window : -growth.window], watch.signal[-growth.window :]
    earlier, later = math.fsum(before) / growth.window, math.fsum(after) / growth.window
    return earlier - later < growth.tolerance * abs(earlier)


def _seen(growth: _Stalling, watch: Watch, signal: float) -> Watch:
    """What was seen, with one more signal; only those that the two windows need are kept."""
    return replace(watch, signal=(*watch.signal, signal)[-2 * growth.window :])


def _check(growth: _Stalling) -> None:
    if growth.least < 1 or growth.window < 1:
        raise UsageError(f"growth needs least and window of 1 round or more, not {growth.least} and {growth.window}")
    if not 0 <= growth.tolerance < 1:
        raise UsageError(f"growth needs a tolerance of 0 to below 1, not {growth.tolerance}")


NAMED: dict[str, Growth | None] = {"fixed": None, "plateau": Plateau(), "movement": Movement()}
"""Policies that a command line can ask for by name."""
