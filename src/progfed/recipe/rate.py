"""Learning rates as functions of the round, evaluated by the server and carried in every task."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Real
from typing import Any, Protocol

from progfed.errors import UsageError


@dataclass(frozen=True)
class Moment:
    """Where training stands: round `t` of `of` in all, and round `stage_t` of `stage_of` in the running phase.

    A stage that begins with an `overlap` of heads counts as one phase.

    Rounds of warm-up, and of phases that `hold` the rate, do not count. In warm-up `t` is that of the round that
    follows, and `warmup` is set.
    """

    t: int
    of: int
    stage_t: int
    stage_of: int
    warmup: bool = False
    stage: int = 1


class Rate(Protocol):
    """A learning rate: any function of the moment. Those below are values that can be compared and stored."""

    def __call__(self, moment: Moment) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    lr: float

    def __post_init__(self) -> None:
        _check(self.lr)

    def __call__(self, moment: Moment) -> float:
        return self.lr


@dataclass(frozen=True)
class Cosine:
    """From `lr` down to `floor` along half a cosine over the rounds; warm-up rounds use `lr`.

    >>> Cosine(0.1)(Moment(t=50, of=100, stage_t=0, stage_of=1))
    0.05
    """

    lr: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.floor)

    def __call__(self, moment: Moment) -> float:
        if moment.warmup:
            return self.lr
        return self.floor + (self.lr - self.floor) * (1 + math.cos(math.pi * moment.t / moment.of)) / 2


@dataclass(frozen=True)
class MultiStep:
    """`lr`, multiplied by `factor` at every milestone.

    Args:
        lr: The rate at the start.
        milestones: Fractions of the rounds, such as `(0.5, 0.75)`.
        factor: What the rate is multiplied by.
    """

    lr: float
    milestones: tuple[float, ...] = (0.3, 0.6, 0.8)
    factor: float = 0.2

    def __post_init__(self) -> None:
        _check(self.lr, self.factor)
        if not isinstance(self.milestones, tuple | list):
            raise UsageError(f"milestones are fractions of the rounds, such as (0.5, 0.75), not {self.milestones!r}")

    def __call__(self, moment: Moment) -> float:
        if moment.warmup:
            return self.lr
        return self.lr * self.factor ** sum(moment.t >= at * moment.of for at in self.milestones)


@dataclass(frozen=True)
class Restart:
    """`rate` started again in each phase, instead of once over the whole run (Sec. 3.1, practical considerations)."""

    rate: Rate

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", as_rate(self.rate))

    def __call__(self, moment: Moment) -> float:
        return self.rate(replace(moment, t=moment.stage_t, of=moment.stage_of))


@dataclass(frozen=True)
class Cycles:
    """`rate` started again in each of `number` equal parts of the run: warm restarts (Loshchilov and Hutter, 2017).

    >>> Cycles(Cosine(0.1), 4)(Moment(t=60, of=80, stage_t=0, stage_of=1))
    0.1
    """

    rate: Rate
    number: int

    def __call__(self, moment: Moment) -> float:
        cycle = moment.t * self.number // moment.of
        first, following = (-(-part * moment.of // self.number) for part in (cycle, cycle + 1))
        return self.rate(replace(moment, t=moment.t - first, of=following - first))


@dataclass(frozen=True)
class PerStage:
    """A rate for each stage; stages beyond the list use its last one.

    Pooled temporary heads have small gradients, so shallow stages bear, and need, larger rates than the full model.
    """

    rates: tuple[Rate, ...]

    def __post_init__(self) -> None:
        if not self.rates:
            raise UsageError("PerStage needs the rate of at least one stage: PerStage((0.1,))")
        object.__setattr__(self, "rates", tuple(as_rate(rate) for rate in self.rates))

    def __call__(self, moment: Moment) -> float:
        return self.rates[min(moment.stage, len(self.rates)) - 1](moment)


def as_rate(value: Any) -> Rate:
    """The learning rate that a recipe was given: a rate as it is, a number as `Cosine` of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cosine(value)
    if not callable(value) or isinstance(value, type):
        raise UsageError(f"a rate is a number, or a value such as Cosine(0.1), not {value!r:.60}")
    return value  # type: ignore[no-any-return]


def top_rate(rate: Any) -> float | None:
    """The `lr` of a rate, of the full model where each stage has its own; None where the rate has no `lr`."""
    if isinstance(rate, Restart):
        return top_rate(rate.rate)
    if isinstance(rate, PerStage):
        return top_rate(rate.rates[-1])
    names = [field.name for field in fields(rate)] if is_dataclass(rate) else []
    return float(getattr(rate, "lr")) if "lr" in names else None  # noqa: B009 any dataclass may have it


def with_top_rate(rate: Any, lr: float) -> Any:
    """The same rate with another `lr`; where each stage has its own, they keep their proportions.

    >>> with_top_rate(PerStage((Constant(0.4), Constant(0.1))), 0.05)
    PerStage(rates=(Constant(lr=0.2), Constant(lr=0.05)))
    """
    if isinstance(rate, Restart):
        return Restart(with_top_rate(rate.rate, lr))
    before = top_rate(rate)
    if isinstance(rate, PerStage):
        factor = lr / before if before else 1.0
        tops = [(one, top_rate(one)) for one in rate.rates[:-1]]
        early = (one if top is None else with_top_rate(one, top * factor) for one, top in tops)
        return PerStage((*early, with_top_rate(rate.rates[-1], lr)))
    return rate if before is None else replace(rate, lr=lr)


def _check(*values: float) -> None:
    for value in values:
        if not isinstance(value, Real) or not 0 <= value < math.inf:
            raise UsageError(f"a learning rate is a finite number of 0 or more, not {value!r}")
