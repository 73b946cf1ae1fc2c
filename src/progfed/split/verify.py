"""The last check of a split model: it runs, it gives the original's output, and every part of it learns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from progfed import rng
from progfed.blocks import Progressive
from progfed.client.kernels import fast_inputs, fast_layout
from progfed.errors import UsageError
from progfed.split.parts import Skeleton
from progfed.split.trace import brief


def verify(model: Progressive, skeleton: Skeleton, inputs: Any, output: Tensor) -> None:
    """Run every sub-model on the example; refuse one that differs from the model or would not learn."""
    for stage in range(1, model.stages + 1):
        module = model.at(stage).eval()
        found = _output(module, inputs, stage)
        if not isinstance(found, Tensor) or found.shape != output.shape:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UsageError(f"the head of stage {stage} gives {shape} where the model gives {list(output.shape)}")
        if stage == model.stages and not torch.allclose(found, output, rtol=0, atol=0, equal_nan=True):
            most = float((found - output).detach().abs().max())
            raise UsageError(
                f"two runs of the model on the example differ by {most:.3g}: it depends on something besides its "
                f"input, its weights and torch's generator, and cannot be split"
            )
        learning = {name: value for name, value in module.named_parameters() if value.requires_grad}
        newest = f"E{stage}.", f"{model.head(stage)}."
        if not any(name.startswith(newest) for name in learning):
            raise UsageError(
                f"block {stage} and its head are all frozen: take fewer stages, choose other cuts, or freeze less"
            )
        slopes = torch.autograd.grad(found.sum(), list(learning.values()), allow_unused=True)
        idle = [name for name, slope in zip(learning, slopes, strict=True) if slope is None]
        if idle:
            raise UsageError(f"no gradient reaches {idle[0]} at stage {stage}: choose other cuts, or your own heads")
    skeleton.plain = not _any_layout(model, inputs)


def _output(module: torch.nn.Module, inputs: Any, stage: int) -> Any:
    try:
        with rng.default(0, "split"), torch.enable_grad():
            return module(inputs)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the sub-model of stage {stage} fails on the example ({brief(error)}): its forward needs "
            f"something of a later block, or its head does not fit; choose other cuts, or your own heads"
        ) from error


def _any_layout(model: Progressive, inputs: Any) -> bool:
    """Whether the forward works on images stored channels-last, as training stores them; with `view` it may not."""
    try:
        for stage in range(1, model.stages + 1):
            with rng.default(0, "split"), torch.no_grad():
                fast_layout(model.at(stage).eval())(fast_inputs(inputs))
    except RuntimeError:
        return False
    return True
