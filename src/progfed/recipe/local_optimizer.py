"""A client's own `torch.optim` optimizer, made anew in each round from a class or a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from progfed.errors import UsageError

OptimizerFactory = Callable[..., Optimizer]
"""`factory(parameters, lr=…)` makes an optimizer: a class of `torch.optim`, `functools.partial` of one, a function."""


def made(factory: OptimizerFactory, parameters: Sequence[Tensor], *, lr: float, **settings: float) -> Optimizer:
    """The optimizer of one round; of the settings, those that are not 0 are passed on."""
    return factory(list(parameters), lr=lr, **{name: value for name, value in settings.items() if value})


def check_factory(factory: Any, **settings: float) -> None:
    """Refuse what makes no optimizer, or none that takes these settings; a step on one number is tried."""
    if isinstance(factory, Optimizer):
        kind = type(factory).__name__
        raise UsageError(
            f"optimizer is a {kind} that has its parameters already, but clients make their own in each round: give "
            f"the class {kind}, or functools.partial({kind}, …)"
        )
    wrong_class = isinstance(factory, type) and not issubclass(factory, Optimizer)
    if wrong_class or not callable(factory):
        raise UsageError(
            "optimizer takes a class of torch.optim, or a function of parameters and lr that makes an optimizer, not "
            f"{factory!r:.60}"
        )
    name = _named(factory)
    _check_settings(factory, name, [setting for setting, value in settings.items() if value])
    number = torch.zeros(1, requires_grad=True)
    number.grad = torch.zeros(1)
    try:
        optimizer = made(factory, [number], lr=0.1, **settings)
        if isinstance(optimizer, Optimizer):
            optimizer.step()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"{name}(parameters, lr=0.1) cannot take a step as a client's optimizer: {reason}") from error
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"{name} makes a {type(optimizer).__name__}, which is no torch.optim.Optimizer")


def _check_settings(factory: Any, name: str, given: list[str]) -> None:
    fixed = factory.keywords if isinstance(factory, functools.partial) else {}
    if "lr" in fixed:
        raise UsageError(f"the learning rate comes from the recipe's rate: leave lr={fixed['lr']} out of {name}")
    taken = inspect.signature(_inner(factory)).parameters
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    for setting in given:
        if setting in fixed:
            raise UsageError(f"{setting} is given twice, to Local and to {name}: leave out one of them")
        if setting not in taken and not anything:
            raise UsageError(f"{name} takes no {setting}: leave it out of Local")


def _inner(factory: Any) -> Any:
    return factory.func if isinstance(factory, functools.partial) else factory


def _named(factory: Any) -> str:
    return getattr(_inner(factory), "__name__", type(factory).__name__)
