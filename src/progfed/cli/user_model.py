"""Makes a `Progressive` of a model in a user's Python file: finds it by name, tries it on an example, splits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from progfed.blocks import Progressive
from progfed.errors import ProgfedError, UsageError, did_you_mean
from progfed.experiments import loaded
from progfed.split import split
from progfed.tensors import tree_map

_Entered = tuple[str, str, str]
"""A module that is being run: its name, its type, and the shapes of what it got."""

STAGES = 3
"""Stages of a model that is not progressive yet, where nothing else is asked for."""


def user_model(target: str, *, example: str | Tensor | None, stages: int | None, **options: Any) -> Progressive:
    """The model in `FILE:NAME` as a `Progressive`.

    Args:
        target: The file and the name of a model, or of a function or class that makes one.
        example: An example as a tensor, or the name of one in the same file.
        stages: The number of stages, where the model has to be split; None: as many as `cuts` make, or 3.
        **options: Further arguments of `split`.
    """
    path, _, name = target.rpartition(":")
    module = loaded(Path(path))
    model = _made(module, name, target)
    if isinstance(model, Progressive):
        if options or stages not in (None, model.stages):
            raise UsageError(f"{target} is progressive already, with {model.stages} stages: it cannot be split again")
        tried(lambda: model.at(model.stages), (model.example,), target)  # it takes any tree as one argument
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{target} is of type {type(model).__name__}: name a Progressive, an nn.Module, or a function that makes it"
        )
    if example is None:
        raise UsageError(f"{target} needs an input to be tried on: give --input 3x32x32, or --example NAME")
    inputs = _made(module, example, f"{path}:{example}") if isinstance(example, str) else example
    tried(lambda: model, inputs, target)
    if stages is None:
        stages = len(options["cuts"]) + 1 if "cuts" in options else STAGES
    return split(model, stages=stages, example=inputs, **options)


def user_module(target: str, *, example: str | Tensor | None) -> tuple[nn.Module, Any]:
    """The module in `FILE:NAME`, of a `Progressive` its full model; and the example, read as by `user_model`."""
    path, _, name = target.rpartition(":")
    if not path:
        raise UsageError(f"{target!r} names no model: give FILE:NAME, such as mine.py:net")
    file = loaded(Path(path))
    model = _made(file, name, target)
    module = model.at(model.stages) if isinstance(model, Progressive) else model
    if not isinstance(module, nn.Module):
        raise UsageError(f"{target} is of type {type(module).__name__}: name an nn.Module, or a function that makes it")
    return module, _made(file, example, f"{path}:{example}") if isinstance(example, str) else example


def zeros(shape: str, dtype: str) -> Tensor:
    """One example of zeros, of the shape that an option such as `3x32x32` gives."""
    sizes = shape.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise UsageError(f"an input is told as numbers with x between them, such as 3x32x32, not {shape!r}")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"{dtype!r} is no type of tensors: give float32, or int64 for tokens")
    return torch.zeros((1, *map(int, sizes)), dtype=kind)


def tried(make: Callable[[], nn.Module], inputs: Any, target: str) -> None:
    """Run the model once; where a layer refuses its input, the error names the layer and the input's shape."""
    inside: list[_Entered] = []
    try:
        inputs = tree_map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), inputs)
        with _watched(make(), inside) as model, torch.no_grad():
            _called(model.eval(), inputs)
    except ProgfedError:
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if not inside:
            raise UsageError(f"{target} cannot be run: {reason}") from error
        name, kind, got = inside[-1]
        where = f"layer {name!r} ({kind})" if name else f"the forward of {kind}"
        raise UsageError(f"{target}: {where} refused an input of shape {got}: {reason}") from error


@contextmanager
def _watched(model: nn.Module, inside: list[_Entered]) -> Iterator[nn.Module]:
    """While the block runs, `inside` lists the modules that were entered and not left; hooks are removed afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    hooks: list[RemovableHandle] = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(partial(_enter, inside, name), with_kwargs=True))
        hooks.append(module.register_forward_hook(lambda *_: _leave(inside)))
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training


def _enter(inside: list[_Entered], name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
    inside.append((name, type(module).__name__, shapes or "that is no tensor"))


def _leave(inside: list[_Entered]) -> None:
    inside.pop()


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def named(module: ModuleType, name: str, target: str) -> Any:
    """What a user's file has under this name."""
    if not hasattr(module, name):
        known = [known for known in vars(module) if not known.startswith("_")]
        hint = did_you_mean(name, known) or f"it has {', '.join(known) or 'no names at all'}"
        raise UsageError(f"{target}: the file has no {name!r}; {hint.strip()}")
    return getattr(module, name)


def _made(module: ModuleType, name: str, target: str) -> Any:
    """The object of a name in the file; a function or class is called to make it."""
    value = named(module, name, target)
    if isinstance(value, nn.Module | Progressive | Tensor) or not callable(value):
        return value
    try:
        return value()
    except ProgfedError:
        raise
    except Exception as error:
        raise UsageError(f"{target} cannot be called without arguments: {type(error).__name__}: {error}") from error
