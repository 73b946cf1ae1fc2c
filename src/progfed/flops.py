"""FLOPs of training, counted by torch itself: forward and backward of what is really trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from progfed.blocks import Progressive
from progfed.schedule import Phase
from progfed.tensors import part, tree_map

_BATCH = 2  # BatchNorm refuses to train on a single value per channel


def per_example(model: Progressive, phase: Phase) -> int:
    """FLOPs of one training step on one example in this phase.

    Runs on the `meta` device: shapes only, so a 3D U-Net costs no more to count than a small ConvNet.
    """
    module = freeze(model.phase_module(phase).train(), model, phase).to("meta")
    inputs = tree_map(_widen, model.example)
    with FlopCounterMode(display=False) as counter:
        _total(module(inputs)).backward()  # type: ignore[no-untyped-call]
    return counter.get_total_flops() // _BATCH


def freeze(module: torch.nn.Module, model: Progressive, phase: Phase) -> torch.nn.Module:
    """Let only the parts that learn in this phase require gradients."""
    trained = set(model.trained(phase))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(part(name) in trained)
    return module


def _widen(leaf: Tensor) -> Tensor:
    return torch.empty((_BATCH, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")


def _total(outputs: Any) -> Tensor:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total: Tensor = sum(output.sum() for output in outputs)
    return total
