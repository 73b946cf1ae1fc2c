"""The same model in the form that trains fastest on a CPU: the same names, the same function, cheaper steps.

What changes no bit: images last in channels is a layout; max-pooling before ReLU and ReLU in place compute the same
numbers from fewer. What changes the last bits or the draws, but not what is computed: the weight gradient of a
convolution of one channel as one matrix product, and dropout masks drawn from keyed random bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed.blocks import Stage
from progfed.tensors import tree_map

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_FORGETS_ITS_OUTPUT = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.MaxPool2d)


class Draws:
    """Where the dropout layers of a replica draw from: the learner puts each client's own generator here."""

    generator: torch.Generator | None = None


def fast_layout(module: nn.Module, draws: Draws | None = None) -> nn.Module:
    """The module, rewritten in place; with `draws`, dropout draws from there instead of torch's default generator."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() in _LAYOUTS:
            tensor.data = tensor.data.to(memory_format=_LAYOUTS[tensor.dim()])
    guard_norms(module)
    for block in _rows(module):
        _pool_first(block)
        _in_place(block)
        for name, child in block.named_children():
            if type(child) is nn.Conv2d and _one_channel(child):
                setattr(block, name, OneChannelConv(child))
    for parent in list(module.modules()) if draws is not None else []:
        for name, child in parent.named_children():
            if draws is not None and type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p, draws))
    return module


def guard_norms(module: nn.Module) -> nn.Module:
    """The module, whose GroupNorms take inputs that need no gradient in the usual layout only.

    torch's kernel for the gradient of the weights writes to nowhere, and ends the process, where the input is last in
    channels and needs none: behind frozen layers.
    """
    for child in module.modules():
        if isinstance(child, nn.GroupNorm):
            child.register_forward_pre_hook(_usual_layout)
    return module


def _usual_layout(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    learning = torch.is_grad_enabled() and any(p.requires_grad for p in norm.parameters(recurse=False))
    return (inputs[0].contiguous(), *inputs[1:]) if learning and inputs and not inputs[0].requires_grad else None


def _rows(module: nn.Module) -> list[nn.Sequential]:
    """The sequences of layers that are certain to be called as such, one layer after the other, with nobody looking on.

    Code of a user's own may take a sequence apart, so what lies inside other modules stays as it is.
    """
    if type(module) is nn.Sequential:
        return [module, *(row for child in module for row in _rows(child))]
    if isinstance(module, Stage) and module.chained:
        return [row for child in module.children() if type(child) is nn.Sequential for row in _rows(child)]
    return []


def fast_inputs(inputs: Any) -> Any:
    """Inputs in the layout of `fast_layout`; only batches of images and volumes have one."""
    return tree_map(
        lambda leaf: leaf.contiguous(memory_format=_LAYOUTS[leaf.dim()]) if leaf.dim() in _LAYOUTS else leaf, inputs
    )


def gather(inputs: Any, index: Tensor) -> Any:
    """The inputs at these positions, in the layout they have: rows of memory, copied as they are."""
    return tree_map(lambda leaf: _gather(leaf, index), inputs)


def _gather(leaf: Tensor, index: Tensor) -> Tensor:
    if leaf.dim() in _LAYOUTS and leaf.is_contiguous(memory_format=_LAYOUTS[leaf.dim()]):
        return leaf.movedim(1, -1).index_select(0, index).movedim(-1, 1)
    return leaf.index_select(0, index)


def draws_at_random(module: nn.Module) -> bool:
    """Whether a rewritten module has dropout that needs a generator."""
    return any(isinstance(child, Dropout) for child in module.modules())


def _pool_first(block: nn.Sequential) -> None:
    """max(relu(x)) = relu(max(x)), and so are the gradients: ReLU then touches a quarter of the numbers."""
    for place, (first, second) in enumerate(pairwise(list(block))):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            block[place], block[place + 1] = second, first


def _in_place(block: nn.Sequential) -> None:
    """ReLU may overwrite what no gradient needs any more: the output of a convolution, product or pooling."""
    for place, (first, second) in enumerate(pairwise(list(block))):
        if type(second) is nn.ReLU and type(first) in _FORGETS_ITS_OUTPUT:
            block[place + 1] = nn.ReLU(inplace=True)


def _one_channel(conv: nn.Conv2d) -> bool:
    return (
        conv.in_channels == 1
        and conv.stride == conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and conv.weight[0].numel() <= 32
    )


class OneChannelConv(nn.Module):
    """A convolution of grey images: the stock kernel takes ten times as long as a matrix product for its gradient."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self._padding = conv.padding

    def forward(self, images: Tensor) -> Tensor:
        learning = torch.is_grad_enabled() and self.weight.requires_grad and not images.requires_grad
        if not learning or images.device.type != "cpu":
            return functional.conv2d(images, self.weight, self.bias, padding=self._padding)
        result: Tensor = _OneChannel.apply(images, self.weight, self.bias, self._padding)  # type: ignore[no-untyped-call]
        return result


class _OneChannel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(images)
        ctx.weight, ctx.padding, ctx.biased = weight.shape, padding, bias is not None
        return functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (images,) = ctx.saved_tensors
        tall, wide = ctx.padding
        outputs, _, height, width = ctx.weight
        padded = functional.pad(images, (wide, wide, tall, tall)) if tall or wide else images
        patches = padded.unfold(2, height, 1).unfold(3, width, 1).permute(1, 4, 5, 0, 2, 3).reshape(height * width, -1)
        slopes = grads[0].permute(0, 2, 3, 1).reshape(-1, outputs)
        weight = (patches @ slopes).t().contiguous().view(ctx.weight)
        return None, weight, slopes.sum(0) if ctx.biased else None, None


class Dropout(nn.Module):
    """`nn.Dropout` whose mask costs a random byte an element, from a generator of its own.

    A byte is exact where p is a multiple of 1/256; otherwise 32 bits are drawn, and p is exact to 2^-32.
    """

    def __init__(self, p: float, draws: Draws) -> None:
        super().__init__()
        self.p, self._draws = p, draws

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return inputs
        return inputs * self.noise(inputs)

    def noise(self, inputs: Tensor) -> Tensor:
        """0 with probability p, otherwise 1/(1-p), in the shape and layout of the inputs."""
        if self.p == 1:
            return torch.zeros_like(inputs)
        bits = torch.uint8 if (256 * self.p).is_integer() else torch.int32
        low, levels = (0, 256) if bits is torch.uint8 else (-(2**31), 2**32)
        per_word = 8 // bits.itemsize
        words = torch.empty(-(-inputs.numel() // per_word), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self._draws.generator)
        kept = words.view(bits)[: inputs.numel()] >= low + round(self.p * levels)
        noise = (kept * (1 / (1 - self.p))).to(inputs)
        return noise.as_strided(inputs.shape, inputs.stride()) if _dense(inputs) else noise.view(inputs.shape)


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory, in one of the two layouts that training uses."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last or tensor.is_contiguous()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one intra-op thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
