"""How to train: everything that the server and its clients agree on, as one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Literal, TypeVar

from torch import Tensor
from torch.nn import functional

from progfed import rng
from progfed.codec import Apart, Codec, Fitted, Float, bits_of, with_bits
from progfed.errors import UsageError
from progfed.recipe.aggregate import Aggregate, Mean, Weighted, least
from progfed.recipe.buffered import Buffered
from progfed.recipe.growth import Growth
from progfed.recipe.local_optimizer import OptimizerFactory, check_factory
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.optimizers import ServerOptimizer, fedavg
from progfed.recipe.privacy import Privacy
from progfed.recipe.rate import Constant, Rate
from progfed.recipe.short_forms import SHORT_FORMS
from progfed.schedule import Phase, Schedule, follow
from progfed.tensors import Tensors

Loss = Callable[[Tensor, Tensor], Tensor]
Between = Callable[[Sequence[Tensor]], Tensor]
Number = TypeVar("Number", int, float)


_LATER = {"later": True}
"""Marks a setting that came after the first release: it is left out of an experiment's identity while it has its
default (or the value it has `before`: what runs did without it), so that a run begun before it existed is still the
same experiment."""


@dataclass(frozen=True)
class StepLimit:
    """A bound on the gradient of a step, so that no step moves the parameters further than `length`.

    With momentum a gradient counts for 1 / (1 - momentum) steps, so its norm is at most length (1 - momentum) / lr.
    """

    length: float = 2.5

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise UsageError(f"the limit of a step is a positive length, not {self.length}")


@dataclass(frozen=True, kw_only=True)
class Local:
    """How one client trains in one round: SGD or another optimizer, without memory of other rounds unless asked for.

    Args:
        epochs: How often a client goes through its examples.
        batch: Examples in a step.
        momentum: SGD's momentum, which starts at zero in each round.
        weight_decay: SGD's weight decay.
        prox: FedProx's mu in mu/2 ||w - w0||^2.
        loss: A function of outputs and targets.
        skip_above: A step whose loss is not below this is not taken.
        keep_momentum: Whether a client keeps its momentum from one of its rounds to the next.
        clip: A bound on the gradient of a step over all parameters, before weight decay and `prox` add to it. A number
            is its largest norm, as for `torch.nn.utils.clip_grad_norm_`; a `StepLimit` bounds how far a step goes, and
            so fits every learning rate. The default is a guard: it is reached at large rates, where it saves layers
            that have just grown. None leaves every gradient as it is, as in the paper.
        steps: The most steps that a client takes in a round, however many batches its epochs have; None: no limit.
        accumulate: Each step is down the mean gradient of so many batches, the last one of those that are left.
        optimizer: Makes another optimizer than the built-in SGD, which is the fastest: a class of `torch.optim`, a
            `functools.partial` of one, or a function. It is called as `optimizer(parameters, lr=…)` in each round, with
            the rate of the recipe, and with `momentum` and `weight_decay` where they are not 0; its state begins anew.
            Gradients are in `.grad` then, so that hooks work. A `StepLimit` is for the built-in SGD only.
        between: Added to the sum of the losses where a phase uses several heads: a function of their outputs, the
            shallowest first, such as `Distil()`.
    """

    epochs: int = 1
    batch: int = 20
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    loss: Loss = functional.cross_entropy
    skip_above: float = field(default=math.inf, metadata=_LATER)
    keep_momentum: bool = field(default=False, metadata=_LATER)
    clip: float | StepLimit | None = field(default=StepLimit(), metadata={**_LATER, "before": None})
    steps: int | None = field(default=None, metadata=_LATER)
    accumulate: int = field(default=1, metadata=_LATER)
    optimizer: OptimizerFactory | None = field(default=None, metadata=_LATER)
    between: Between | None = field(default=None, metadata=_LATER)

    def __post_init__(self) -> None:
        if not all(isinstance(value, Integral) and value >= 1 for value in (self.epochs, self.batch)):
            raise UsageError(f"a client needs at least 1 epoch and a batch of 1, not {self.epochs} and {self.batch}")
        self._check_types()
        if not self.skip_above > 0:
            raise UsageError(f"skip_above is a loss above 0, from which on steps are skipped, not {self.skip_above}")
        if self.keep_momentum and not self.momentum:
            raise UsageError("keep_momentum=True needs a momentum above 0: without one there is nothing to keep")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"momentum is 0 to below 1, not {self.momentum}")
        for name in ("weight_decay", "prox"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is a finite number of 0 or more, not {getattr(self, name)}")
        if isinstance(self.clip, float | int) and not self.clip > 0:
            raise UsageError(f"clip is the largest norm of a gradient, a positive number or None, not {self.clip}")
        if not isinstance(self.accumulate, Integral) or self.accumulate < 1:
            raise UsageError(f"accumulate is a whole number of 1 or more batches a step, not {self.accumulate}")
        if self.steps is not None and (not isinstance(self.steps, Integral) or self.steps < 1):
            raise UsageError(
                f"steps is the most steps of a round, a whole number of 1 or more or None, not {self.steps}"
            )
        if self.optimizer is not None:
            if self.keep_momentum:
                raise UsageError("keep_momentum is for the built-in SGD: leave it out, or leave out the optimizer")
            check_factory(self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay)

    def _check_types(self) -> None:
        """Refuse what is of another type than it must be."""
        if isinstance(self.loss, type):
            raise UsageError(f"loss is a function, not a class: make it first, {self.loss.__name__}()")
        if not callable(self.loss):
            raise UsageError(f"loss is a function of outputs and targets, not {self.loss!r}")
        for name in ("momentum", "weight_decay", "prox", "skip_above"):
            if not isinstance(getattr(self, name), Real):
                raise UsageError(f"{name} is a number, not {getattr(self, name)!r}")
        if not isinstance(self.clip, Real | StepLimit | None):
            raise UsageError(f"clip is a number, a StepLimit or None, not {self.clip!r}")

    @property
    def most_batches(self) -> int | None:
        """How many batches a client trains on at most in a round; None where only its epochs limit it."""
        return None if self.steps is None else self.steps * self.accumulate

    def seen(self, examples: Number) -> Number:
        """How many examples a client that holds so many trains on in a round, each as often as it comes.

        >>> Local(epochs=2, batch=20).seen(50), Local(epochs=2, batch=20, steps=4).seen(50)
        (100, 70)
        """
        if self.most_batches is None:
            return self.epochs * examples
        whole, rest = divmod(self.most_batches, max(1, math.ceil(examples / self.batch)))
        return min(self.epochs * examples, whole * examples + min(rest * self.batch, examples))

    def largest_norm(self, lr: float) -> float | None:
        """The largest norm that a gradient may have at this learning rate; None where there is no bound."""
        if isinstance(self.clip, StepLimit) and self.optimizer is not None:
            return None
        if isinstance(self.clip, StepLimit):
            return self.clip.length * max(1 - self.momentum, 0.0) / lr if lr else math.inf
        return self.clip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train: a schedule, and how each of its rounds goes.

    Args:
        schedule: What `progressive`, `end_to_end` or another function of `progfed.schedule` returns.
        cohort: How many clients are drawn in each round.
        rate: The learning rate: `Cosine`, `Constant`, …; a number stands for `Cosine` of it.
        local: How a client trains.
        server: What the server does with the mean update: `fedavg()`, `fedadam()`, …, or its name.
        weighting: Whether the mean is weighted by the clients' `"examples"` or `"uniform"`.
        up: The codec of updates, such as `Quantize(8)`, or its name, such as `"LQ-8"`.
        down: The codec of the model on its way to the clients.
        feedback: Whether a client adds what its codec lost to its next update.
        delta: Whether a client that took part in the round before is sent only the compressed change of the model.
        min_updates: How many valid updates a round needs; with fewer, training stops. A trimmed mean needs as many as
            it can trim.
        seed: What cohorts, initial weights, batches and the schedule of `random` are drawn from.
        aggregate: How updates become one: `Mean()`, `Median()`, …, or a name such as `"median"`.
        privacy: Makes the aggregate a noisy mean of clipped updates.
        over_selection: 1.3 asks three reserves for every ten clients of the cohort. They stand in for clients whose
            update is missing or invalid; while nobody fails, the result is the one without them to the bit.
        deadline: How many seconds an engine over a network waits for a round. Clients on this machine are never late,
            since its speed must not decide the result.
        growth: A policy, or its name such as `"plateau"`, that ends a stage when training it no longer helps, at the
            latest after the rounds of its phase.
        base: What a whole model is sent as the change of: `"zero"` sends the parameters themselves, `"start"` what
            training has changed since the initial ones. Every client makes those from the seed, and need keep nothing.
        method: What clients do beside plain steps, keep, and send beside the update: `Scaffold()`, `FedDyn()`,
            `Personal()`, or one of your own.
        bytes: The most that all messages of the run may take in both directions, as a share of what end-to-end training
            sends in floats over as many rounds: 0.02, or "2%". The server then chooses the codecs of each round
            (`DQ-0.7bit`, with as many bits as the budget has left for it), and `base` is `"start"`.
        asynchronous: `Buffered(…)`: the server takes a step whenever so many updates have come, by the clock of the
            clients' devices, and `cohort` is how many clients train at a time.
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
    aggregate: Aggregate = field(default=Mean(), metadata=_LATER)
    privacy: Privacy | None = field(default=None, metadata=_LATER)
    over_selection: float = field(default=1.0, metadata=_LATER)
    deadline: float = field(default=math.inf, metadata=_LATER)
    growth: Growth | None = field(default=None, metadata=_LATER)
    base: Literal["zero", "start"] = field(default="zero", metadata=_LATER)
    method: Method = field(default=PLAIN, metadata=_LATER)
    bytes: float | None = field(default=None, metadata=_LATER)
    asynchronous: Buffered | None = field(default=None, metadata=_LATER)

    def __post_init__(self) -> None:
        for name, understand in SHORT_FORMS.items():
            object.__setattr__(self, name, understand(getattr(self, name)))  # the way of a frozen dataclass
        if self.bytes is not None:
            self._budgeted()
        if not isinstance(self.schedule, tuple | list) or not all(isinstance(one, Phase) for one in self.schedule):
            raise UsageError(f"a schedule is made by progressive() or end_to_end(), not {self.schedule!r:.60}")
        if not self.schedule:
            raise UsageError("a recipe needs a schedule with at least one phase")
        for phase in self.schedule:
            _check_phase(phase)
        if not isinstance(self.local, Local):
            raise UsageError(f"local is a progfed.Local(…), how a client trains, not {self.local!r:.60}")
        if not isinstance(self.seed, Integral):
            raise UsageError(f"a seed is a whole number, not {self.seed!r}")
        object.__setattr__(self, "schedule", follow(self.schedule, self.seed))
        if not isinstance(self.cohort, Integral) or self.cohort < 1:
            raise UsageError(f"a cohort is a whole number of 1 or more clients, not {self.cohort}")
        if not 1 <= self.min_updates <= self.cohort:
            raise UsageError(f"min_updates must be 1 to the cohort's {self.cohort}, not {self.min_updates}")
        if self.cohort < least(self.aggregate):
            raise UsageError(
                f"{self.aggregate} drops nobody from a cohort of {self.cohort} and would be the plain mean: "
                f"take a cohort of {least(self.aggregate)} or more, a larger share, or the median"
            )
        if self.weighting not in ("examples", "uniform"):
            raise UsageError(f"weighting is by 'examples' or 'uniform', not {self.weighting!r}")
        if self.base not in ("zero", "start"):
            raise UsageError(
                f"base is 'zero' or 'start', what a whole model is sent as the change of: not {self.base!r}"
            )
        if not 1 <= self.over_selection < math.inf:
            raise UsageError(f"over_selection is 1 or more times the cohort, not {self.over_selection}")
        if not self.deadline > 0:
            raise UsageError(f"a deadline is a positive number of seconds, not {self.deadline}")
        if self.privacy is not None and (self.weighting != "uniform" or self.aggregate != Mean()):
            raise UsageError(
                "privacy needs weighting='uniform' and the mean as aggregate: one client must not count for more"
            )
        if self.privacy is not None and self.growth is not None and self.growth.reads_loss:
            raise UsageError(
                "growth by the training loss would tell about clients what no noise hides: use growth=Movement() with "
                "privacy, which sees only the noisy model"
            )

        if self.asynchronous is not None:
            check_asynchronous(self)

    def _budgeted(self) -> None:
        """Set what a budget implies, and refuse what it cannot go with."""
        if self.bytes is None or not 0 < self.bytes < 1:
            raise UsageError(f"bytes is a share of end-to-end training's, above 0 and below 1, not {self.bytes}")
        if self.delta or self.feedback:
            other = "delta" if self.delta else "feedback"
            raise UsageError(f"bytes cannot be promised with {other}=True: leave out one of them")
        object.__setattr__(self, "base", "start")
        for name in ("up", "down"):
            codec = getattr(self, name)
            if isinstance(codec, Float):
                object.__setattr__(self, name, Fitted(8))
            elif bits_of(codec) is None:
                raise UsageError(f"with bytes the server chooses the codecs: leave out {name}={codec.name}")

    @property
    def bits(self) -> tuple[float, float] | None:
        """The bits a number, down and up, that clients are told with a task; None without a budget of bytes."""
        down, up = bits_of(self.down), bits_of(self.up)
        return None if self.bytes is None or down is None or up is None else (down, up)

    def with_bits(self, bits: tuple[float, float] | None) -> Recipe:
        """The recipe with the codecs that the server chose for a round; None: with those that it has."""
        if bits is None:
            return self
        return replace(self, down=with_bits(self.down, bits[0]), up=with_bits(self.up, bits[1]))

    @property
    def needed(self) -> int:
        """How many valid updates a round needs: for `min_updates` and for the aggregate."""
        return max(self.min_updates, least(self.aggregate))

    @property
    def upward(self) -> Codec:
        """The codec of a client's whole message: that of its update, and the method's for what travels beside it."""
        return self.with_method(self.up)

    @property
    def downward(self) -> Codec:
        """The codec of the whole message to a client: that of the model, and the method's for what travels beside."""
        return self.with_method(self.down)

    def with_method(self, codec: Codec) -> Codec:
        """The codec of a whole message whose part of the model has this one."""
        return codec if self.method == PLAIN else Apart(codec, self.method.codec)

    def check_population(self, clients: int) -> None:
        """Refuse a population that is too small for the cohort."""
        if self.cohort > clients:
            raise UsageError(f"a cohort of {self.cohort} clients cannot be drawn from {clients}: use 1 to {clients}")

    def asked(self, clients: float) -> int:
        """How many clients a round asks, of a population of this size: the cohort and its reserves."""
        return int(min(clients, math.ceil(self.cohort * self.over_selection - 1e-9)))

    def draw(self, clients: int, number: int) -> tuple[int, ...]:
        """The clients that round `number` asks: the cohort in increasing order, then the reserves, first to last."""
        seed = self.seed if self.privacy is None else self.privacy.hidden(self.seed)
        cohort = rng.sample(clients, self.cohort, seed, "sample", number)
        reserves = rng.sample(clients - self.cohort, self.asked(clients) - self.cohort, seed, "reserve", number)
        others = [_skipping(cohort, index) for index in reserves]
        return cohort + tuple(sorted(others, key=lambda client: rng.rank(seed, "call", number, client)))

    def idle(self, busy: Sequence[int], clients: int, number: int) -> tuple[int, ...]:
        """The clients that round `number` of an asynchronous run sends out: none who is busy, and a cohort in all."""
        drawn = rng.sample(clients - len(busy), self.cohort - len(busy), self.seed, "sample", number)
        return tuple(sorted(_skipping(tuple(busy), index) for index in drawn))

    def combine(self, updates: Weighted, number: int) -> Tensors:
        """The updates of round `number` aggregated to one, with noise where privacy is asked for."""
        if self.privacy is None:
            return self.aggregate(updates)
        return self.privacy.release(updates, cohort=self.cohort, seed=self.seed, number=number)

    def spent(self, number: int, clients: int) -> float | None:
        """Epsilon after round `number`; None without privacy. All clients that were asked count, also reserves."""
        if self.privacy is None:
            return None
        return self.privacy.spent(number, clients=clients, asked=self.asked(clients))


def check_asynchronous(recipe: Recipe) -> None:
    """Refuse what has no meaning without common rounds."""
    assert recipe.asynchronous is not None
    size = recipe.asynchronous.size
    if recipe.privacy or recipe.delta or recipe.over_selection > 1 or recipe.deadline < math.inf or recipe.bytes:
        raise UsageError(
            "asynchronous rounds go without privacy, delta, over_selection, deadline and bytes, which are promises "
            "about who takes part in a round: leave them out"
        )
    if not max(recipe.min_updates, least(recipe.aggregate)) <= size <= recipe.cohort:
        raise UsageError(
            f"a buffer of {size} updates needs a cohort of {size} or more clients that train at a time, not "
            f"{recipe.cohort}, and no min_updates or aggregate that asks for more than {size}"
        )


def _skipping(taken: tuple[int, ...], index: int) -> int:
    """The `index`-th number from 0 that is not in `taken`, which is in increasing order."""
    for number in taken:
        index += number <= index
    return index


def _check_phase(phase: Phase) -> None:
    """Refuse a phase that lasts no rounds, or asks for blocks above its stage to be trained."""
    if not isinstance(phase.rounds, Integral) or phase.rounds < 1:
        raise UsageError(f"a phase lasts a whole number of 1 or more rounds, not {phase.rounds}")
    if not all(1 <= block <= phase.stage for block in phase.trains):
        raise UsageError(f"a phase of stage {phase.stage} trains blocks 1 to {phase.stage}, not {phase.trains}")
