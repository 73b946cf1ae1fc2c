"""What a model's forward does with an example: which modules run in which order, and its autograd graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from progfed import rng
from progfed.errors import UsageError
from progfed.population import ready_inputs
from progfed.tensors import tree_map

Node = Any
"""A node of torch's autograd graph; the same node is the same object for as long as somebody holds it."""

_PARALLEL = nn.DataParallel, nn.parallel.DistributedDataParallel


@dataclass
class Call:
    """What a module did in the forward: when it was entered and left, how often, and the features that came out.

    `layer` is the last module with parameters of its own that was entered before this one was left: its width tells
    which axis of the features is that of the channels.
    """

    opened: int
    closed: int = -1
    times: int = 0
    node: Node = None
    shape: tuple[int, ...] = ()
    returned: str = ""
    flops: int = 0
    layer: nn.Module | None = None


@dataclass(frozen=True)
class Trace:
    """The forward of an example: calls by module name, the output, and the parameters behind any node of the graph.

    `mask` is the shape of the attention mask among the inputs; empty where there is none.
    """

    calls: dict[str, Call]
    output: Tensor
    parameters: dict[str, Tensor]
    mask: tuple[int, ...] = ()

    def reach(self, start: Node, *, without: Node = None) -> set[Node]:
        """The nodes that `start` was computed from, itself included; the search does not go past `without`."""
        found: set[Node] = set()
        ahead = [start]
        while ahead:
            node = ahead.pop()
            if node is not None and node is not without and node not in found:
                found.add(node)
                ahead.extend(before for before, _ in node.next_functions)
        return found

    def names(self, nodes: Iterable[Node]) -> frozenset[str]:
        """The parameters among these nodes."""
        names = {id(value): name for name, value in self.parameters.items()}
        return frozenset(names[id(node.variable)] for node in nodes if is_leaf(node) and id(node.variable) in names)

    @property
    def trained(self) -> frozenset[str]:
        """The parameters that the output depends on: the only ones that a gradient reaches."""
        return self.names(self.reach(self.output.grad_fn))


def is_leaf(node: Node) -> bool:
    """Whether a node stands for a parameter, not for something computed."""
    return hasattr(node, "variable")


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on inputs: a dict as keyword arguments, a tuple or list as positional ones."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def logits(output: Any) -> Tensor:
    """The one tensor that a loss is computed from: the output itself, its `logits`, or the first of several."""
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", output)
    if isinstance(found, Tensor):
        return found
    several = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    first = next((value for value in several if isinstance(value, Tensor)), None)
    if first is None:
        raise UsageError(
            f"the model returns {type(output).__name__}, in which there is no tensor to compute a loss from: "
            f"put the model into a module whose forward returns that tensor, or something with `logits`"
        )
    return first


def features(output: Any) -> Tensor | None:
    """The tensor that a module returns: the output itself, or the first of a tuple, as from layers of transformers."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def plain(model: nn.Module) -> nn.Module:
    """The model itself, without what `torch.compile` or `nn.DataParallel` have put around it."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"split takes a model, an nn.Module that was made, not {model!r}")
    while inner := model._modules.get("_orig_mod") or (isinstance(model, _PARALLEL) and model.module):
        model = inner
    compiled = [name for name, module in model.named_modules() if "_orig_mod" in module._modules]
    if compiled:
        raise UsageError(f"layer {compiled[0]!r} is compiled: split the model before its layers are compiled")
    return model


def in_float32(model: nn.Module) -> tuple[nn.Module, dict[str, torch.dtype]]:
    """A model whose floating-point numbers are all float32, and the types of those in its `state_dict` that were not.

    Steps are too small for the few digits of a shorter type: trained in bfloat16, most weights would stay as they are.
    """
    everything = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    other = {name: x.dtype for name, x in everything if x.is_floating_point() and x.dtype is not torch.float32}
    if not other:
        return model, {}
    kinds = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in other.values()}))
    warnings.warn(f"{type(model).__name__} has {kinds}: trained as float32, exported as {kinds}", stacklevel=3)
    return _deep_copy(model).float(), {name: other[name] for name in model.state_dict() if name in other}


def _deep_copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"{type(model).__name__} cannot be copied ({brief(error)}): split a freshly made model"
        ) from error


def copied(model: nn.Module) -> nn.Module:
    """A copy of the model to examine, in evaluation mode, with gradients everywhere; the model is not changed."""
    if not any(value.requires_grad for value in model.parameters()):
        raise UsageError("no parameter of the model learns: call model.requires_grad_() before it is split")
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise UsageError("the model has lazy layers, whose shapes are not known yet: run it once on an example first")
    copy_ = _deep_copy(model).cpu().eval()
    for name, value in (*copy_.named_parameters(), *copy_.named_buffers()):
        if value.is_complex():
            raise UsageError(f"{name} is {value.dtype}, but training is in float32: split a model of real numbers")
    for parameter in copy_.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return copy_


def trace(model: nn.Module, inputs: Any, *, flops: bool = False) -> Trace:
    """Run a copy made by `copied` once and record what happens; with `flops` also the FLOPs spent up to each module."""
    calls: dict[str, Call] = {}
    clock = iter(range(2**62))
    counter = FlopCounterMode(display=False)
    layer: list[nn.Module] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any) -> None:
            calls.setdefault(name, Call(next(clock))).times += 1
            if next(module.parameters(recurse=False), None) is not None:
                layer[:] = [module]

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            seen, found = calls[name], features(output)
            seen.closed, seen.returned = next(clock), type(output).__name__
            seen.flops = counter.get_total_flops() if flops else 0
            seen.layer = layer[0] if layer else None
            if found is not None:
                seen.node, seen.shape = found.grad_fn, tuple(found.shape)

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave(name)).remove)
        stack.enter_context(rng.default(0, "split"))
        stack.enter_context(torch.enable_grad())
        if flops:
            stack.enter_context(counter)
        output = logits(_on_example(model, inputs))
    if output.grad_fn is None:
        raise UsageError("no gradient reaches the parameters from the model's output: split needs a model that learns")
    mask = attention_mask(inputs)
    return Trace(calls, output, dict(model.named_parameters()), () if mask is None else tuple(mask.shape))


def attention_mask(inputs: Any) -> Tensor | None:
    """The mask that marks padding among the inputs, under the name that it has in transformers; None without one."""
    return inputs.get("attention_mask") if isinstance(inputs, dict) else None


def _on_example(model: nn.Module, inputs: Any) -> Any:
    try:
        return call(model, inputs)
    except Exception as error:
        raise UsageError(
            f"{type(model).__name__} fails on the example ({brief(error)}): give `example` as the "
            f"model takes it: a tensor, a dict of keyword arguments or a tuple of positional ones"
        ) from error


def brief(error: Exception) -> str:
    """What went wrong inside the model, in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def few(example: Any, number: int = 2) -> Any:
    """The first examples of a batch, or as many as there are, in the form in which training takes them."""
    try:
        return tree_map(lambda leaf: leaf[:number], ready_inputs(example))
    except TypeError as error:
        raise UsageError(f"the example cannot be used: {error}") from error
