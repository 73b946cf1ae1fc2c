"""What an experiment is, as plain JSON and as 16 digits: how a run directory knows that it is continued and not mixed.

Functions are told by name. progfed's own have the names that they had when they were first used, wherever their code
lives today, so that code can move and runs of older versions still continue. Functions without a name of their own are
told by their code and what it closes over, and objects by their class and what pickle would store of them: an object
that keeps something else besides its settings, such as a cache, leaves it out with `__getstate__`.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from progfed.blocks import Progressive, state
from progfed.codec import schema_of
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.schedule import Phase
from progfed.wire.message import schema_hash

_FIRST_HOMES = {
    "progfed.blocks": "pooled_head",
    "progfed.data.augment": "cifar_training colour_jitter compose normalise random_crop random_flip "
    "random_volume_crop random_volume_flip volume_training",
    "progfed.data.brats": "brats",
    "progfed.data.cifar": "cifar10 cifar100",
    "progfed.data.datasets": "from_datasets",
    "progfed.data.decathlon": "decathlon hippocampus",
    "progfed.data.embedded": "embedded",
    "progfed.data.federated_h5": "emnist fed_cifar100 federated_h5 mnist_by_writer",
    "progfed.data.idx": "fashion_mnist mnist",
    "progfed.data.synthetic": "classification segmentation",
    "progfed.data.text": "by_speaker embedded_speakers",
    "progfed.experiments.defaults": "residual_network",
    "progfed.evaluate": "accuracy dice token_accuracy",
    "progfed.metrics": "auc f1 mae perplexity rmse token_entropy",
    "progfed.examples": "from_clients",
    "progfed.experiments.weak": "half_weak some_of_cifar10 strong_half",
    "progfed.losses": "dice_loss token_loss",
    "progfed.models.convnet": "convnet_cifar convnet_mnist",
    "progfed.models.gpt": "gpt",
    "progfed.models.resnet": "resnet152 resnet18 resnet34 resnet50",
    "progfed.models.unet": "unet",
    "progfed.models.vgg": "vgg16 vgg19",
}
"""The module in which each function of progfed that can be part of an experiment was first released. A new function of
that kind is added here, and no entry is ever changed: run directories have these names in them."""

PINNED = {function: module for module, functions in _FIRST_HOMES.items() for function in functions.split()}

_TOLD_BY_REPR = (bytes, complex, range, slice, Enum, PurePath, torch.dtype, torch.device)


def identity(experiment: Any) -> str:
    """16 hexadecimal digits that name the experiment in every message and checkpoint."""
    return _digest(json.dumps(describe(experiment), sort_keys=True).encode())


def describe(value: Any) -> Any:
    """A value as plain JSON: what an experiment is, in a form that can be stored, compared and hashed."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, Progressive):
        return {
            "model": value.name,
            "schema": schema_hash(schema_of(state(value.shapes(Phase(value.stages, 1))))).hex(),
            **({"frozen": value.frozen} if value.frozen else {}),
        }
    if isinstance(value, FederatedData):
        return _population(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: describe(getattr(value, f.name)) for f in _told(value)}
    if isinstance(value, functools.partial):
        return {"call": describe(value.func), "args": describe(value.args)} | _named(value.keywords)
    if isinstance(value, _TOLD_BY_REPR):
        return f"{getattr(value, '__module__', '?')}:{value!r}"
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType | MethodType) or hasattr(value, "__qualname__"):
        return _function(value)
    try:
        return _object(value)
    except (TypeError, AttributeError, RecursionError, ValueError) as error:
        raise UsageError(
            f"an experiment with a {_name(type(value))} cannot be told from another ({error}): use a function, a "
            "dataclass, or an object whose __getstate__ returns its settings"
        ) from error


def _population(data: FederatedData) -> dict[str, Any]:
    """Clients that are given as a value: how many examples each has, and what is done to them; not the examples."""
    weak = {"deepest": _digest(str(list(data.deepest)).encode())} if data.deepest else {}
    machines = {"devices": _digest(str(list(data.devices)).encode())} if data.devices else {}
    pieces = {"pieces": _digest(str(list(data.pieces)).encode())} if data.pieces else {}
    augment = {"augment": describe(data.augment)} if data.augment is not None else {}
    sizes = _digest(str(list(data.sizes)).encode())
    return {"data": data.name, "clients": data.clients, "sizes": sizes, **weak, **machines, **pieces, **augment}


def _function(value: Any) -> Any:
    """A function or class by its name; where it has none of its own, its code and the values it closes over too."""
    name = _name(value)
    if isinstance(value, MethodType) and not isinstance(value.__self__, type):
        return {"call": name, "of": describe(value.__self__)}
    if not isinstance(value, FunctionType) or ("<lambda>" not in name and "<locals>" not in name):
        return name
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    closure = {variable: cell.cell_contents for variable, cell in cells}
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items())
    return {
        "call": name,
        # progfed's own may be written anew; it is the same function
        **({} if name.startswith("progfed.") else {"code": _digest(_code(value.__code__))}),
        **({"defaults": describe(defaults)} if defaults else {}),
        **({"closure": _named({key: v for key, v in closure.items() if v is not value})} if closure else {}),
    }


def _object(value: Any) -> Any:
    """Any other value: tensors by their bytes, modules and objects by their class and state."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return _array(str(value.dtype), value.shape, value.flatten().contiguous().view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray) and value.dtype != object:
        return _array(str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, nn.Module):
        every_module = vars(nn.Module())
        state: dict[str, Any] = value.__getstate__()  # type: ignore[no-untyped-call]
        settings = {key: item for key, item in state.items() if key not in every_module}
        held = {**value._parameters, **value._buffers, **value._modules}
        return {"type": _name(type(value))} | _named(settings | held)
    if type(value) is dict:
        return _named(value)
    if isinstance(value, set | frozenset):
        return {"set": sorted((describe(item) for item in value), key=json.dumps)}
    return _pickled(value)


def _pickled(value: Any) -> Any:
    """What pickle would store of an object, without its functions' code."""
    stored = value.__reduce_ex__(2)
    if isinstance(stored, str):
        return f"{getattr(value, '__module__', '?')}:{stored}"
    make, args, state, items, pairs = (*stored, None, None, None)[:5]
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]
        args = args[1:]  # the class, which is told anyway
    told = {"args": args, "items": list(items or ()), "pairs": dict(pairs or ())}
    settings = state if isinstance(state, dict) else {"state": state} if state is not None else {}
    return {"type": _name(type(value))} | _named({key: item for key, item in told.items() if item} | settings)


def _named(values: dict[Any, Any]) -> dict[str, Any]:
    """Values by name, in the order of names."""
    told = {key if isinstance(key, str) else json.dumps(describe(key)): value for key, value in values.items()}
    return {name: describe(told[name]) for name in sorted(told)}


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> dict[str, Any]:
    return {"type": dtype, "shape": list(shape), "sha256": _digest(content)}


def _code(code: CodeType) -> bytes:
    """What a function does, wherever in its file it is written."""
    constants = [_code(one).hex() if isinstance(one, CodeType) else describe(one) for one in code.co_consts]
    return json.dumps([code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _name(value: Any) -> str:
    """The name of a function or class: `module:function`, with the module where progfed's own were first released."""
    if isinstance(renamed := getattr(value, "identity", None), str):
        return renamed  # a function whose default has changed names itself anew
    module, name = getattr(value, "__module__", "?"), value.__qualname__
    if str(module).partition(".")[0] == "progfed":
        module = PINNED.get(name.partition(".")[0], module)
    return f"{module}:{name}"


def _told(value: Any) -> list[Field[Any]]:
    """The fields that describe a value: no secrets, which only the server knows, and later additions to a recipe only
    where they are used, so that older runs stay what they are."""
    told = [f for f in fields(value) if not f.metadata.get("secret")]
    return [f for f in told if not (f.metadata.get("later") and getattr(value, f.name) == _before(f))]


def _before(field: Field[Any]) -> Any:
    """What a later addition stands for in a run from before it: its default, unless it says otherwise."""
    return field.metadata.get("before", field.default)
