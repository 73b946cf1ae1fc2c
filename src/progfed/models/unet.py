"""U-Nets in 3D or 2D that grow symmetrically or asymmetrically (Sec. 3.1, Extension to U-nets).

Level 1 is the outermost and has the full resolution; the innermost is the bottleneck. A level has an encoder (`enc1`),
a decoder (`dec1`, except the bottleneck) and an upsampling to the level outside it (`up2`, except level 1). Layers are
named alike in both growths: only the block that holds them differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed.blocks import Make, Progressive, biased
from progfed.errors import UsageError

Features = tuple[Tensor, ...]
"""The current features, then those of the encoder that still wait for their decoder, the outermost last."""


def unet(
    *,
    growth: str = "symmetric",
    dims: int = 3,
    widths: Sequence[int] = (24, 40, 88, 168, 320),
    in_channels: int = 4,
    regions: int = 3,
    stages: int | Sequence[int] = 4,
    size: int | Sequence[int] = 128,
    bias: Sequence[float] = (),
) -> Progressive:
    """A U-Net with a score for each region, or class, at every position of an image or a volume.

    The defaults are for BraTS (4 modalities, 3 regions) and give 9,447,019 parameters; the paper's U-Net has 9,451,567,
    but its exact layers are not published. Inputs of any size work.

    Args:
        growth: `"symmetric"` grows from the outer levels to the inner ones and keeps the output head `G`; features of
            levels that are not there yet are left out. `"asymmetric"` starts with the whole encoder as E_1 and grows
            the decoder from the inner levels to the outer ones; the temporary heads upsample their scores.
        dims: 2 for images, 3 for volumes.
        widths: The channels of each level, the outermost first.
        in_channels: The channels of the input.
        regions: The number of regions or classes.
        stages: The number of stages: each block then has one level, and the last has the rest ({1}, {2}, {3}, {4, 5}).
            Or the number of levels of each block, such as (1, 1, 1, 2); in asymmetric growth, of decoder levels
            after E_1.
        size: The size of the example by which costs are counted, one side or all.
        bias: What the bias of every head begins with, a number for each region: see `biased`.
    """
    layers = _Layers(dims, tuple(widths), in_channels, regions, tuple(bias))
    shape = (size,) * dims if isinstance(size, int) else tuple(size)
    if len(shape) != dims or min(shape) < 1:
        raise UsageError(f"size {shape} must be {dims} positive numbers for a U-Net in {dims} dimensions")
    example = torch.empty(1, in_channels, *shape, device="meta")
    if growth == "symmetric":
        return _symmetric(layers, stages, example)
    if growth == "asymmetric":
        return _asymmetric(layers, stages, example)
    raise UsageError(f"growth is {growth!r}, but a U-Net grows 'symmetric' or 'asymmetric': give one of these")


def _symmetric(layers: _Layers, stages: int | Sequence[int], example: Tensor) -> Progressive:
    groups = _groups(range(1, layers.depth + 1), stages)
    return Progressive(
        blocks=tuple(layers.levels(group) for group in groups),
        heads=(layers.head(1),) * len(groups),
        example=example,
        wire=_nested,
        keep_head=True,
        name="unet-symmetric",
    )


def _asymmetric(layers: _Layers, stages: int | Sequence[int], example: Tensor) -> Progressive:
    groups = _groups(range(layers.depth - 1, 0, -1), stages, before=1)
    return Progressive(
        blocks=(layers.encoder, *(layers.decoder(group) for group in groups)),
        heads=tuple(layers.head(level) for level in (layers.depth, *(group[-1] for group in groups))),
        example=example,
        name="unet-asymmetric",
    )


def _groups(levels: Sequence[int], stages: int | Sequence[int], *, before: int = 0) -> list[Sequence[int]]:
    """The levels of each block, in the order in which they grow; `before` is the number of blocks ahead of them."""
    number = len(levels)
    if isinstance(stages, int):
        sizes = [*[1] * (stages - before - 1), number - (stages - before - 1)]
    else:
        sizes = list(stages)
    if not sizes or min(sizes) < 1 or sum(sizes) != number:
        raise UsageError(
            f"stages={stages} does not cut a U-Net of {number + before} levels: give a number from {1 + before} to "
            f"{number + before}, or a positive number of levels for each block whose sum is {number}"
        )
    return [levels[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


@dataclass(frozen=True)
class _Layers:
    """How to make the layers of a U-Net, and the blocks of both growths."""

    dims: int
    widths: tuple[int, ...]
    in_channels: int
    regions: int
    bias: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.dims not in (2, 3):
            raise UsageError(f"a U-Net has 2 or 3 dimensions, not {self.dims}")
        if len(self.widths) < 2 or min(*self.widths, self.in_channels, self.regions) < 1:
            raise UsageError(
                f"a U-Net needs two or more positive widths, and positive channels and regions; found widths "
                f"{self.widths}, in_channels {self.in_channels}, regions {self.regions}"
            )
        if len(self.bias) not in (0, self.regions):
            raise UsageError(f"bias {self.bias} must be a number for each of the {self.regions} regions")

    @property
    def depth(self) -> int:
        return len(self.widths)

    def _encoding(self, level: int) -> dict[str, nn.Module]:
        inputs = (self.in_channels, *self.widths)[level - 1]
        return {f"enc{level}": DoubleConv(self.dims, inputs, self.widths[level - 1])}

    def _decoding(self, level: int) -> dict[str, nn.Module]:
        width = self.widths[level - 1]
        return {f"dec{level}": DoubleConv(self.dims, 2 * width, width)} if level < self.depth else {}

    def _raising(self, level: int) -> dict[str, nn.Module]:
        up = nn.ConvTranspose3d if self.dims == 3 else nn.ConvTranspose2d
        return {f"up{level}": up(self.widths[level - 1], self.widths[level - 2], 2, stride=2)} if level > 1 else {}

    def levels(self, levels: Sequence[int]) -> Make:
        """A block of symmetric growth: all layers of these levels, to be wired by `_nested`."""

        def layers() -> Iterator[tuple[str, nn.Module]]:
            for level in levels:
                yield from (self._encoding(level) | self._raising(level) | self._decoding(level)).items()

        return lambda: nn.ModuleDict(dict(layers()))

    def encoder(self) -> nn.Module:
        """E_1 of asymmetric growth."""
        return Encoder({k: v for level in range(1, self.depth + 1) for k, v in self._encoding(level).items()})

    def decoder(self, levels: Sequence[int]) -> Make:
        """A later block of asymmetric growth."""

        def layers() -> Iterator[tuple[str, nn.Module]]:
            for level in levels:
                yield from (self._raising(level + 1) | self._decoding(level)).items()

        return lambda: Decoder(dict(layers()))

    def head(self, level: int) -> Make:
        return biased(lambda: Head(self.dims, self.widths[level - 1], self.regions), self.bias)


class DoubleConv(nn.Module):
    """Two convolutions of kernel 3, each followed by GroupNorm (which has no buffers) and ReLU.

    An input with fewer channels than `inputs` stands for one whose other channels are zero: only the slice of the
    weight that meets its channels takes part, which gives the same and is cheaper.
    """

    def __init__(self, dims: int, inputs: int, width: int) -> None:
        super().__init__()
        conv = nn.Conv3d if dims == 3 else nn.Conv2d
        self.conv1 = conv(inputs, width, 3, padding=1, bias=False)
        self.norm1 = _norm(width)
        self.conv2 = conv(width, width, 3, padding=1, bias=False)
        self.norm2 = _norm(width)

    def forward(self, features: Tensor) -> Tensor:
        convolve = functional.conv3d if features.dim() == 5 else functional.conv2d
        features = convolve(features, self.conv1.weight[:, : features.shape[1]], padding=1)
        features = self.norm1(features).relu_()
        features = self.norm2(self.conv2(features)).relu_()
        return features


def _norm(width: int) -> nn.GroupNorm:
    # at least two channels a group: one alone would be normalised to zero where the innermost level is a single voxel
    return nn.GroupNorm(
        max((groups for groups in (2, 4, 8) if width % groups == 0 and width > groups), default=1), width
    )


def encode(encoders: Iterable[nn.Module], inputs: Tensor) -> list[Tensor]:
    """The features of each level, each at half the resolution of the one before it.

    Odd sizes are halved upwards, so that upsampling always reaches as far as the level outside it.
    """
    features: list[Tensor] = []
    pool = functional.max_pool3d if inputs.dim() == 5 else functional.max_pool2d
    for encoder in encoders:
        inputs = encoder(pool(inputs, 2, ceil_mode=True) if features else inputs)
        features.append(inputs)
    return features


def decode(up: nn.Module, decoder: nn.Module, inner: Tensor, skip: Tensor) -> Tensor:
    """The features of a level, made from those of the level inside it and from its own encoder."""
    raised = up(inner)[(..., *(slice(length) for length in skip.shape[2:]))]
    decoded: Tensor = decoder(torch.cat((skip, raised), 1))
    return decoded


def _nested(blocks: Sequence[nn.Module], heads: Mapping[int, nn.Module], inputs: Tensor) -> list[Tensor]:
    """The wiring of symmetric growth: down through the levels that exist, and up again."""
    layers = {name: layer for block in blocks for name, layer in block.named_children()}
    features = encode((layer for name, layer in layers.items() if name.startswith("enc")), inputs)
    depth = len(features)
    # the innermost level that is there: a decoder without an inner level, or the bottleneck, which has no decoder
    current = layers[f"dec{depth}"](features[-1]) if f"dec{depth}" in layers else features[-1]
    for level in range(depth - 1, 0, -1):
        current = decode(layers[f"up{level + 1}"], layers[f"dec{level}"], current, features[level - 1])
    return [head((current,)) for head in heads.values()]


class Encoder(nn.ModuleDict):
    """All levels of the encoder, from the outermost to the bottleneck."""

    def forward(self, inputs: Tensor) -> Features:
        return tuple(reversed(encode(self.values(), inputs)))


class Decoder(nn.ModuleDict):
    """One or more levels of the decoder, the inner one first: pairs of an upsampling and a decoder."""

    def forward(self, features: Features) -> Features:
        layers = iter(self.values())
        for up, decoder in zip(layers, layers, strict=True):
            inner, skip, *rest = features
            features = (decode(up, decoder, inner, skip), *rest)
        return features


class Head(nn.Module):
    """A convolution of kernel 1 to the regions; logits of an inner level are upsampled to the full resolution."""

    def __init__(self, dims: int, width: int, regions: int) -> None:
        super().__init__()
        self.out = (nn.Conv3d if dims == 3 else nn.Conv2d)(width, regions, 1)

    def forward(self, features: Features) -> Tensor:
        logits: Tensor = self.out(features[0])
        full = features[-1].shape[2:]
        if logits.shape[2:] == full:
            return logits
        return functional.interpolate(logits, full, mode="trilinear" if logits.dim() == 5 else "bilinear")
