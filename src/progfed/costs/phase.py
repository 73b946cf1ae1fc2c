"""The cost of a phase: FLOPs counted by torch itself, and what travels in each direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from progfed import rng
from progfed.blocks import Progressive
from progfed.blocks import buffer_names as buffers_of
from progfed.codec import Schema, numel
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.travel import travel
from progfed.schedule import Phase
from progfed.tensors import leaves, part, tree_map

_SMALL = 100_000
_BATCH = 2  # BatchNorm refuses to train on a single value per channel


@dataclass(frozen=True)
class PhaseCost:
    """What a phase costs: FLOPs of a training example, parameters in use and trained, and the two messages' schemas.

    `buffers` are the floating-point buffers among the names: they travel, but no optimizer touches them. What a method
    lets travel beside model and update is in the schemas; what is private is in neither, and is not counted as trained.
    """

    flops: int
    parameters: int
    trained_parameters: int
    buffers: frozenset[str]
    down: Schema
    up: Schema

    @property
    def head_share(self) -> float:
        """The share of the heads in the numbers of the message down."""
        sizes = {name: math.prod(shape) for name, shape in self.down.items()}
        return sum(size for name, size in sizes.items() if part(name).startswith("G")) / sum(sizes.values())


def phase_cost(model: Progressive, phase: Phase, method: Method = PLAIN) -> PhaseCost:
    """The cost of one example and one client in a phase."""
    module = model.shapes(phase)
    crossing = travel(model, phase, method, module)
    return PhaseCost(
        flops=sum(per_example(model, turn) for turn in phase.turns),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        trained_parameters=trained_parameters(model, phase, method),
        buffers=buffer_names(model, phase),
        down=crossing.down,
        up=crossing.up,
    )


def up_schema(model: Progressive, phase: Phase, method: Method) -> Schema:
    """Names and shapes of the tensors in the update of a phase."""
    return travel(model, phase, method, model.shapes(phase)).up


def trained_parameters(model: Progressive, phase: Phase, method: Method) -> int:
    """How many parameters a client trains in a phase and sends back."""
    return numel(travel(model, phase, method, model.shapes(phase)).trained)


def buffer_names(model: Progressive, phase: Phase) -> frozenset[str]:
    """The floating-point buffers of a phase, such as BatchNorm's statistics."""
    return buffers_of(model.shapes(phase))


def per_example(model: Progressive, phase: Phase) -> int:
    """FLOPs of one training step, forward and backward of what is really trained, on one example.

    The step is really taken, on zeros, for small inputs; for large ones such as volumes only shapes are computed with,
    which costs more per layer but nothing per voxel.
    """
    module: torch.nn.Module = model.shapes(phase).train()
    inputs = tree_map(_widen, model.example)
    if all(leaf.numel() <= _SMALL for leaf in leaves(inputs)):
        module, inputs = zeroed(module), tree_map(lambda leaf: torch.zeros_like(leaf, device="cpu"), inputs)
    with rng.default(0, "flops"), FlopCounterMode(display=False) as counter:  # dropout draws
        _total(module(inputs)).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops()) // _BATCH


def zeroed(module: torch.nn.Module) -> torch.nn.Module:
    """A module of shapes as a module of zeros on the processor."""
    module = module.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.zero_()
    return module


def _widen(leaf: Tensor) -> Tensor:
    return torch.empty((_BATCH, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")


def _total(outputs: Any) -> Tensor:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total: Tensor = sum(output.sum() for output in outputs)
    return total


@dataclass(frozen=True)
class Cost:
    """What a round, or a run, has cost. `paper_bytes` is the published accounting (docs/costs.md), others measured."""

    down_bytes: int = 0
    up_bytes: int = 0
    paper_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.down_bytes + other.down_bytes,
            self.up_bytes + other.up_bytes,
            self.paper_bytes + other.paper_bytes,
            self.flops + other.flops,
            self.seconds + other.seconds,
        )
