"""ResNet-18, 34, 50 and 152 for 32x32 images, with GroupNorm in place of BatchNorm (appendix, Architectures).

The stem is a 3x3 convolution without a max-pool.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from progfed.blocks import Make, Progressive, pooled_head
from progfed.heads import with_heads
from progfed.models.pieces import Cuts, Norm, Piece, cut, norm_of

# Every conv*_x is two pieces, its halves; the stem belongs to the first.
_CUTS: Cuts = {1: (8,), 2: (4, 4), 3: (2, 4, 2), 4: (2, 2, 2, 2), 5: (1, 2, 2, 2, 1), 8: (1,) * 8}
_FACTORS = (1, 2, 4, 8)
"""How wide the residual blocks of each conv*_x are, in those of conv2_x."""


def resnet18(
    classes: int = 100,
    *,
    stages: int = 4,
    norm: str = "group",
    size: int = 32,
    heads: str = "pooled",
    width: int = 64,
) -> Progressive:
    """ResNet-18 for images of any size: 11,220,132 parameters with 100 classes.

    S = 4 is the paper's cut: {stem + conv2_x}, {conv3_x}, {conv4_x}, {conv5_x}. S = 3 joins conv3_x with conv4_x; S = 2
    joins conv2_x with conv3_x, and conv4_x with conv5_x. S = 8 halves every conv*_x; S = 5 starts with half of conv2_x
    and then joins each second half with the first half that follows it. Where the number of residual blocks is odd
    (in deeper ResNets) the first half has one more.

    Args:
        classes: The number of classes.
        stages: 2, 3, 4, 5 or 8.
        norm: `"group"` (no buffers, for federated training) or `"batch"`.
        size: The side of the images by which costs are counted: give the size of the crops that it is trained on.
        heads: The temporary heads: `"pooled"` as in the paper, or a `"grid"` that costs little (see `with_heads`).
        width: The channels of the first residual blocks; those of the others are 2, 4 and 8 times as many.
    """
    model = _resnet((2, 2, 2, 2), classes, stages=stages, norm=norm, heads=heads, name="resnet18", width=width)
    return replace(model, example=torch.zeros(1, 3, size, size))


def resnet34(classes: int = 100, *, stages: int = 4, norm: str = "group", heads: str = "pooled") -> Progressive:
    """ResNet-34; its arguments are those of `resnet18`."""
    return _resnet((3, 4, 6, 3), classes, stages=stages, norm=norm, heads=heads, name="resnet34")


def resnet50(classes: int = 100, *, stages: int = 4, norm: str = "group", heads: str = "pooled") -> Progressive:
    """ResNet-50, which is made of bottlenecks; its arguments are those of `resnet18`."""
    return _resnet((3, 4, 6, 3), classes, stages=stages, norm=norm, heads=heads, name="resnet50", expansion=4)


def resnet152(classes: int = 100, *, stages: int = 4, norm: str = "group", heads: str = "pooled") -> Progressive:
    """ResNet-152, made of bottlenecks: 58,341,028 parameters with 100 classes; with the arguments of `resnet18`."""
    return _resnet((3, 8, 36, 3), classes, stages=stages, norm=norm, heads=heads, name="resnet152", expansion=4)


def _resnet(
    depths: tuple[int, ...],
    classes: int,
    *,
    stages: int,
    norm: str,
    heads: str,
    name: str,
    expansion: int = 1,
    width: int = 64,
) -> Progressive:
    chosen = norm_of(norm)
    pieces: list[Piece] = []
    inputs = width
    for index, (factor, depth) in enumerate(zip(_FACTORS, depths, strict=True)):
        own = width * factor
        for half, count in enumerate(((depth + 1) // 2, depth // 2)):
            shapes = [(inputs, own, 2 if index and not half else 1)] + [(own * expansion, own, 1)] * (count - 1)
            make = _half(shapes, norm=chosen, expansion=expansion, stem=0 if pieces else width)
            pieces.append(Piece(f"conv{index + 2}{'ab'[half]}", make, own * expansion))
            inputs = own * expansion
    model = cut(pieces, _CUTS, stages, head=pooled_head(inputs, classes), classes=classes, name=name)
    return with_heads(model, heads)


def _half(shapes: list[tuple[int, int, int]], *, norm: Norm, expansion: int, stem: int) -> Make:
    """Half of a conv*_x: residual blocks of these (inputs, width, stride), after a stem of so many channels, if any."""

    def make() -> nn.Module:
        block = nn.Sequential()
        if stem:
            block.add_module("stem", nn.Sequential(*_conv(3, stem, 3, norm=norm), nn.ReLU(inplace=True)))
        for number, (inputs, width, stride) in enumerate(shapes, start=1):
            body = _basic if expansion == 1 else _bottleneck
            outputs = width * expansion
            shortcut = _conv(inputs, outputs, 1, stride=stride, norm=norm) if inputs != outputs or stride > 1 else []
            block.add_module(f"block{number}", Residual(body(inputs, width, stride, norm), nn.Sequential(*shortcut)))
        return block

    return make


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); an empty shortcut is the identity."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Sequential) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        total: Tensor = self.body(features) + self.shortcut(features)
        return total.relu_()


def _conv(inputs: int, outputs: int, kernel: int, *, norm: Norm, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), norm(outputs)]


def _basic(inputs: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    first, second = _conv(inputs, width, 3, stride=stride, norm=norm), _conv(width, width, 3, norm=norm)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second)


def _bottleneck(inputs: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    narrow = _conv(inputs, width, 1, norm=norm)
    middle = _conv(width, width, 3, stride=stride, norm=norm)
    wide = _conv(width, 4 * width, 1, norm=norm)
    return nn.Sequential(*narrow, nn.ReLU(inplace=True), *middle, nn.ReLU(inplace=True), *wide)
