"""Server optimizers: what the server does with the mean update of a round (Reddi et al., 2021).

A transform has two methods, `init` and `update`, and transforms chain. FedAvg is the identity on the mean update;
FedAdam is Adam's direction, then a scale. State is kept per name (`slot -> name -> tensor`), so a growth only adds and
drops names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from progfed.errors import UsageError
from progfed.tensors import Tensors

State = dict[str, Tensors]


class ServerOptimizer(Protocol):
    """A transform of the mean update of a round into the step that the server takes.

    With `reset` all state is new after a growth and again after its warm-up, not only that of new names. An optimizer
    may have `evaluated(params, state)`, too: the tensors that are evaluated and saved in place of the parameters.
    """

    @property
    def reset(self) -> bool: ...

    def init(self, params: Tensors) -> State:
        """The state for these names before their first update."""
        ...

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        """The step to add to the parameters, and the next state; names that are not in `delta` keep theirs."""
        ...


@dataclass(frozen=True)
class Scale:
    """The mean update times a server learning rate."""

    lr: float = 1.0
    reset: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise UsageError(f"a server's learning rate is a finite number of 0 or more, not {self.lr}")

    def init(self, params: Tensors) -> State:
        return {}

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        if self.lr == 1.0:
            return delta, state
        return {name: value * self.lr for name, value in delta.items()}, state


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum: m <- beta m + delta."""

    beta: float = 0.9
    reset: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise UsageError(f"a server's momentum is 0 to below 1, not {self.beta}")

    def init(self, params: Tensors) -> State:
        return {"m": {name: torch.zeros_like(value) for name, value in params.items()}}

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        moved = {name: self.beta * state["m"][name] + value for name, value in delta.items()}
        return moved, {"m": {**state["m"], **moved}}


@dataclass(frozen=True)
class Adaptive:
    """The direction m / (sqrt(v) + tau) of the adaptive federated optimizers, with v_{-1} = tau^2.

    Args:
        kind: The rule for v: `adam`, v <- b2 v + (1-b2) d^2; `yogi`, v <- v - (1-b2) d^2 sign(v - d^2); `adagrad`,
            v <- v + d^2.
        beta1: The decay b1 of m.
        beta2: The decay b2 of v.
        tau: Added to the square root of v: how adaptive the step is.
        bias_correction: Divide m by 1 - b1^t and v by 1 - b2^t as plain Adam does, from v_{-1} = 0.
        reset: Whether all state is new after a growth.
    """

    kind: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("adam", "yogi", "adagrad"):
            raise UsageError(f"an adaptive server optimizer is adam, yogi or adagrad, not {self.kind!r}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and 0 < self.tau < math.inf):
            raise UsageError(
                "beta1 and beta2 of a server optimizer are 0 to below 1 and tau is positive, not "
                f"{self.beta1}, {self.beta2} and {self.tau}"
            )
        if self.bias_correction and self.kind != "adam":
            raise UsageError(f"bias correction is defined for adam, not for {self.kind}")

    def init(self, params: Tensors) -> State:
        start = 0.0 if self.bias_correction else self.tau**2
        return {
            "m": {name: torch.zeros_like(value) for name, value in params.items()},
            "v": {name: torch.full_like(value, start) for name, value in params.items()},
            "t": {name: torch.zeros((), dtype=torch.float64) for name in params},
        }

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        step: Tensors = {}
        after: State = {slot: dict(tensors) for slot, tensors in state.items()}
        for name, d in delta.items():
            m = self.beta1 * state["m"][name] + (1 - self.beta1) * d
            v = self._second_moment(state["v"][name], d * d)
            t = state["t"][name] + 1
            after["m"][name], after["v"][name], after["t"][name] = m, v, t
            if self.bias_correction:
                m, v = m / (1 - self.beta1 ** float(t)), v / (1 - self.beta2 ** float(t))
            step[name] = m / (v.sqrt() + self.tau)
        return step, after

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        if self.kind == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        if self.kind == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return v + square


@dataclass(frozen=True)
class ServerChain:
    """Transforms applied one after the other."""

    transforms: tuple[ServerOptimizer, ...]

    @property
    def reset(self) -> bool:
        return any(transform.reset for transform in self.transforms)

    def init(self, params: Tensors) -> State:
        return {f"{i}.{slot}": ts for i, t in enumerate(self.transforms) for slot, ts in t.init(params).items()}

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        after: State = {}
        for i, transform in enumerate(self.transforms):
            prefix = f"{i}."
            own = {slot.removeprefix(prefix): ts for slot, ts in state.items() if slot.startswith(prefix)}
            delta, own = transform.update(delta, own)
            after |= {f"{prefix}{slot}": ts for slot, ts in own.items()}
        return delta, after


def fedavg(lr: float = 1.0) -> ServerOptimizer:
    """FedAvg: the server adds the mean update to the model (McMahan et al., 2017).

    Args:
        lr: The server's learning rate, a factor of the mean update.
    """
    return Scale(lr)


def fedavgm(lr: float = 1.0, momentum: float = 0.9, *, reset: bool = False) -> ServerOptimizer:
    """FedAvg with momentum on the server (Hsu et al., 2019).

    Args:
        lr: The server's learning rate.
        momentum: The share of the previous step that is added to the next.
        reset: Whether momentum starts at zero again after each growth.
    """
    return ServerChain((Momentum(momentum, reset), Scale(lr)))


def fedadam(
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    *,
    bias_correction: bool = False,
    reset: bool = False,
) -> ServerOptimizer:
    """Adam on the server (Reddi et al., 2021, Algorithm 2).

    Args:
        lr: The server's learning rate.
        beta1: The decay of the mean of updates.
        beta2: The decay of the mean of their squares.
        tau: Added to the root of that mean: the larger, the less adaptive.
        bias_correction: Correct both means for their start, as plain Adam does; the published algorithm does not.
        reset: Whether both means start again after each growth.
    """
    return ServerChain((Adaptive("adam", beta1, beta2, tau, bias_correction, reset), Scale(lr)))


def fedyogi(
    lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, *, reset: bool = False
) -> ServerOptimizer:
    """Yogi on the server (Reddi et al., 2021, Algorithm 2).

    Args:
        lr: The server's learning rate.
        beta1: The decay of the mean of updates.
        beta2: The decay of the mean of their squares.
        tau: Added to the root of that mean: the larger, the less adaptive.
        reset: Whether both means start again after each growth.
    """
    return ServerChain((Adaptive("yogi", beta1, beta2, tau, reset=reset), Scale(lr)))


def fedadagrad(lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, *, reset: bool = False) -> ServerOptimizer:
    """Adagrad on the server (Reddi et al., 2021, Algorithm 2).

    Args:
        lr: The server's learning rate.
        beta1: The decay of the mean of updates.
        tau: Added to the root of the sum of squares: the larger, the less adaptive.
        reset: Whether mean and sum start again after each growth.
    """
    return ServerChain((Adaptive("adagrad", beta1, 0.0, tau, reset=reset), Scale(lr)))


NAMED: dict[str, ServerOptimizer] = {
    "fedavg": fedavg(),
    "fedavgm": fedavgm(),
    "fedadam": fedadam(),
    "fedyogi": fedyogi(),
    "fedadagrad": fedadagrad(),
}
"""Optimizers that a recipe or a command line can ask for by name."""


def evaluated(optimizer: ServerOptimizer, params: Tensors, state: State) -> Tensors:
    """What is evaluated and kept as the result: the model, or what an optimizer with `evaluated` makes of it."""
    make = getattr(optimizer, "evaluated", None)
    made: Tensors = params if make is None else make(params, state)
    return made


def grow(optimizer: ServerOptimizer, before: State, params: Tensors) -> State:
    """The state after a growth: new names start anew, old ones are dropped, others keep theirs unless it resets."""
    fresh = optimizer.init(params)
    if optimizer.reset or not before:
        return fresh
    return {slot: {name: before[slot].get(name, value) for name, value in ts.items()} for slot, ts in fresh.items()}
