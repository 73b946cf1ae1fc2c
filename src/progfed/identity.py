"""What an experiment is, as plain JSON and as 16 digits: how a run directory knows that it is continued and not mixed.

Functions are told by name. progfed's own have the names that they had when they were first used, wherever their code
lives today, so that code can move and runs of older versions still continue.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import Field, fields, is_dataclass
from typing import Any

from progfed.blocks import Progressive
from progfed.examples import FederatedData
from progfed.flops import phase_cost
from progfed.protocol import schema_hash
from progfed.schedule import Phase

_FIRST_HOMES = {
    "progfed.blocks": "pooled_head",
    "progfed.data.augment": "cifar_training colour_jitter compose normalise random_crop random_flip "
    "random_volume_crop random_volume_flip volume_training",
    "progfed.data.brats": "brats",
    "progfed.data.cifar": "cifar10 cifar100",
    "progfed.data.decathlon": "decathlon hippocampus",
    "progfed.data.embedded": "embedded",
    "progfed.data.federated_h5": "emnist fed_cifar100 federated_h5 mnist_by_writer",
    "progfed.data.idx": "fashion_mnist mnist",
    "progfed.data.synthetic": "classification segmentation",
    "progfed.data.text": "by_speaker embedded_speakers",
    "progfed.evaluate": "accuracy dice token_accuracy",
    "progfed.examples": "from_clients",
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


def identity(experiment: Any) -> str:
    """16 hexadecimal digits that name the experiment in every message and checkpoint."""
    return hashlib.sha256(json.dumps(describe(experiment), sort_keys=True).encode()).hexdigest()[:16]


def describe(value: Any) -> Any:
    """A value as plain JSON: what an experiment is, in a form that can be stored, compared and hashed."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, Progressive):
        return {"model": value.name, "schema": schema_hash(phase_cost(value, Phase(value.stages, 1)).down).hex()}
    if isinstance(value, FederatedData):
        sizes = hashlib.sha256(str(list(value.sizes)).encode()).hexdigest()[:16]
        depths = hashlib.sha256(str(list(value.deepest)).encode()).hexdigest()[:16]
        weak = {"deepest": depths} if value.deepest else {}
        return {"data": value.name, "clients": value.clients, "sizes": sizes, **weak}
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: _field(f, getattr(value, f.name)) for f in _told(value)}
    if isinstance(value, functools.partial):
        return {"call": describe(value.func), "args": describe(value.args)} | {
            name: describe(argument) for name, argument in sorted(value.keywords.items())
        }
    return _name(value)


def _name(value: Any) -> str:
    """The name of a function or class: `module:function`, with the module where progfed's own were first released."""
    module, name = getattr(value, "__module__", "?"), getattr(value, "__qualname__", repr(value))
    if str(module).partition(".")[0] == "progfed":
        module = PINNED.get(name.partition(".")[0], module)
    return f"{module}:{name}"


def _told(value: Any) -> list[Field[Any]]:
    """The fields that describe a value: later additions to a recipe only where they are used, so that older runs stay
    what they are."""
    return [f for f in fields(value) if not (f.metadata.get("later") and getattr(value, f.name) == f.default)]


def _field(field: Field[Any], value: Any) -> Any:
    """A field's description; of a secret only what tells it from another."""
    if field.metadata.get("secret") and value:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()[:16]
    return describe(value)
