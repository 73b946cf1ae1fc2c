"""Turns an ordinary model into a progressive one without editing it: the sub-models run the model's own forward."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from progfed.blocks import Make, Progressive, biased
from progfed.errors import UsageError
from progfed.heads import SHARE, known
from progfed.split.assemble import Assembly, assemble
from progfed.split.heads import Channels, Head, Kind, Task, infer, supplied, temporary
from progfed.split.layout import Balance, Layout, arrange
from progfed.split.parts import EarlyExit
from progfed.split.trace import Trace, copied, few, in_float32, plain, trace
from progfed.split.unet import Nested, UNet
from progfed.split.verify import verify

__all__ = ["UNet", "split"]


def split(
    model: nn.Module,
    *,
    stages: int,
    example: Any,
    balance: Balance = "params",
    cuts: Sequence[str] | Sequence[int] | None = None,
    head: str | Sequence[str] | int | None = None,
    task: Task | None = None,
    heads: Sequence[Head] | str = "grid",
    channels: Channels | None = None,
    bias: Sequence[float] = (),
    unet: UNet | None = None,
    name: str = "",
) -> Progressive:
    """Turn a model into a `Progressive` that starts from the weights the model has now.

    M^s is the model's own forward up to the end of block s, then a temporary head; M^S is the whole model, to the bit.
    Blocks end where everything passes through the output of one module. Of several outputs, the loss is that of the
    `logits`, or else of the first tensor. Weights of other floating types are trained as float32, which a warning says,
    and exported as what they were. Parameters that do not require gradients are frozen: they are part of the model on
    every machine, and neither trained nor sent nor in a run's checkpoints.

    Args:
        model: The model; it is not changed.
        stages: The number of stages.
        example: A batch as the model takes it: a tensor, a dict of keyword arguments, or a tuple of positional ones.
        balance: Whether blocks are made as equal as possible in `"params"` or in `"flops"`.
        cuts: The modules that end blocks 1..S-1, by name, instead of `balance`. Of an `nn.Sequential` also the indices
            of the children that open blocks 2..S.
        head: The modules of the final head G_S, by name; by default, all that comes after the last possible cut. Of an
            `nn.Sequential` also the number of children in the head.
        task: What the temporary heads predict: `"classification"`, `"tokens"` or `"segmentation"`; by default, what the
            shape of the output tells.
        heads: The temporary heads. `"grid"`: those of a classifier average the features over the cells of a grid, the
            largest that costs little beside the model. `"pooled"`: over all positions, as in the paper. Or your own:
            S-1 modules, or functions that make them. Heads that average over tokens leave out the padding that an
            `attention_mask` in the inputs tells; one of yours whose forward takes `attention_mask` is given it.
        channels: Whether the channels of the features are the `"first"` or the `"last"` axis, where layers do not tell.
        bias: What the biases of the temporary heads begin with, a number for each class (see `biased`); the model's own
            head begins as it is.
        unet: The description of a U-Net, which says where to cut.
        name: The model's name in errors and records; by default that of its class.
    """
    if not isinstance(stages, int):
        raise UsageError(f"stages is a number, such as 3, not {stages!r}")
    model, dtypes = in_float32(plain(model))
    own, inputs = copied(model), few(example)
    seen = trace(own, inputs, flops=balance == "flops")
    modules = [key for key, _ in model.named_modules() if key]
    if unet is None:
        named, top = _children(model, cuts), _head_names(model, head)
        layout = arrange(seen, modules, stages=stages, balance=balance, cuts=named, head=top)
        made = _growing(model, seen, layout, task, heads, channels, bias)
    else:
        if cuts is not None or head is not None:
            raise UsageError("the description of a U-Net says where it is cut and what its head is: give it alone")
        if unet.growth == "symmetric" and (not isinstance(heads, str) or bias):
            raise UsageError("a U-Net that grows symmetrically has no temporary heads: leave out `heads` and `bias`")
        unet.check(seen, modules)
        if unet.growth == "symmetric":
            made = _nested(model, seen, unet, stages)
        else:
            made = _growing(model, seen, unet.exits(seen, stages), task, heads, channels, bias)
    progressive, assembly = made
    progressive = replace(
        progressive,
        example=few(example, 1),
        dtypes=dtypes,
        frozen=assembly.frozen,
        name=f"{name or type(model).__name__}-{_fingerprint(model, progressive, bias)}",
    )
    verify(progressive, assembly.skeleton, inputs, seen.output)
    return progressive


def _growing(
    model: nn.Module,
    seen: Trace,
    layout: Layout,
    task: Task | None,
    heads: Sequence[Head] | str,
    channels: Channels | None,
    bias: Sequence[float],
) -> tuple[Progressive, Assembly]:
    """A model that grows from its input to its output, with temporary heads."""
    assembly = assemble(model, seen.trained, lambda name: layout.part(name, seen))
    stages, ends, output = len(layout.cuts) + 1, [cut.call for cut in layout.cuts], tuple(seen.output.shape)
    if not isinstance(heads, str):
        made = supplied(heads, stages)
    else:
        task = task or (infer(output, ends) if ends else "classification")
        learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        room = SHARE * learning if known(heads) == "grid" else 0.0
        kind = Kind(task, output, channels, room, seen.mask)
        made = [temporary(kind, end, tied=assembly.embedding(output[-1], end.shape[-1])) for end in ends]
    progressive = Progressive(
        blocks=_blocks(assembly, stages),
        heads=(*(biased(make, bias) for make in made), assembly.make(f"G{stages}")),
        example=None,
        wire=EarlyExit(assembly.skeleton, tuple(cut.name for cut in layout.cuts)),
        origin=assembly.origin,
    )
    return progressive, assembly


def _nested(model: nn.Module, seen: Trace, unet: UNet, stages: int) -> tuple[Progressive, Assembly]:
    """A U-Net that grows from its outer levels inwards, and keeps its head."""
    blocks = unet.blocks(stages)
    assembly = assemble(model, seen.trained, lambda name: unet.part(name, blocks))
    progressive = Progressive(
        blocks=_blocks(assembly, stages),
        heads=(assembly.make("G"),) * stages,
        example=None,
        wire=Nested(assembly.skeleton, blocks),
        keep_head=True,
        origin=assembly.origin,
    )
    return progressive, assembly


def _blocks(assembly: Assembly, stages: int) -> tuple[Make, ...]:
    """Functions that make the blocks E_1..E_S."""
    return tuple(assembly.make(f"E{number}") for number in range(1, stages + 1))


def _children(model: nn.Module, cuts: Sequence[str] | Sequence[int] | None) -> list[str] | None:
    """The modules that end blocks, by name, from the indices of the children of an `nn.Sequential` that open blocks."""
    if cuts is None:
        return None
    children = [name for name, _ in model.named_children()]
    named: list[str] = []
    for cut in cuts:
        if isinstance(cut, str):
            named.append(cut)
        elif isinstance(model, nn.Sequential) and 1 <= cut < len(children):
            named.append(children[cut - 1])
        elif isinstance(model, nn.Sequential):
            raise UsageError(f"cuts {list(cuts)} must be increasing indices between 1 and {len(children) - 1}")
        else:
            raise UsageError(f"cut {cut} is an index, but {type(model).__name__} is no nn.Sequential: name the module")
    return named


def _head_names(model: nn.Module, head: str | Sequence[str] | int | None) -> list[str] | None:
    """The modules of the head, by name, from the number of children of an `nn.Sequential`."""
    if head is None or isinstance(head, str):
        return None if head is None else [head]
    if not isinstance(head, int):
        return list(head)
    if not isinstance(model, nn.Sequential) or not 1 <= head < len(model):
        raise UsageError(
            f"head={head} counts the last children of an nn.Sequential: name the modules of the head instead"
        )
    return [name for name, _ in model.named_children()][-head:]


def _fingerprint(model: nn.Module, progressive: Progressive, bias: Sequence[float]) -> str:
    """Eight digits that tell split models apart by their layers, names and temporary heads, not by their weights."""
    with torch.device("meta"):
        heads = [str(progressive.make(progressive.head(stage))) for stage in range(1, progressive.stages)]
    shapes = [(name, tuple(value.shape)) for name, value in model.state_dict().items()]
    text = str((str(model), shapes, sorted(progressive.origin.items()), heads, progressive.keep_head, *bias))
    return hashlib.sha256(re.sub(r"0x[0-9a-fA-F]+", "", text).encode()).hexdigest()[:8]
