"""Augmentation of whole batches: an `Augment` takes examples and a generator and returns examples.

Images are `[batch, channels, height, width]`; bytes mean 0..255 and floats mean 0..1 until they are normalised. Every
example draws its own crop, flip, factors and order of jitter, and there is no loop over examples. The settings of the
paper's rows are in `cifar_training`; the steps are the usual ones for these data sets, computed in floating point
without rounding to bytes in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from progfed.errors import DataError
from progfed.population import Augment, Examples

Moments = tuple[tuple[float, ...], tuple[float, ...]]

CIFAR10: Moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100: Moments = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
MNIST: Moments = ((0.1307,), (0.3081,))
FASHION_MNIST: Moments = ((0.2860,), (0.3530,))

_GRAY = (0.299, 0.587, 0.114)


def compose(*steps: Augment) -> Augment:
    """The steps one after the other, all drawing from the same generator."""

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        for step in steps:
            examples = step(examples, generator)
        return examples

    return run


def random_crop(size: int, *, padding: int = 0) -> Augment:
    """A window of `size` x `size` at a uniformly drawn place of each image, after padding with black (0) all around."""

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        padded = F.pad(examples.inputs, (padding,) * 4) if padding else examples.inputs
        starts = _starts(padded.shape, (size, size), generator)
        return Examples(windows(padded, starts, (size, size)), examples.targets)

    return run


def random_rotation(degrees: float) -> Augment:
    """Each image turned around its centre by an angle uniform in -degrees..degrees; corners that open up are black.

    Pixels are taken from the nearest place, so that bytes stay bytes.
    """

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        images = examples.inputs
        angles = torch.empty(len(images)).uniform_(-degrees, degrees, generator=generator).deg2rad()
        cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
        ratio = images.shape[-1] / images.shape[-2]  # places are told in halves of the width and of the height
        turn = torch.stack((torch.stack((cos, -sin / ratio, zero), 1), torch.stack((sin * ratio, cos, zero), 1)), 1)
        places = F.affine_grid(turn, list(images.shape), align_corners=False)
        turned = F.grid_sample(images.float(), places, mode="nearest", align_corners=False)
        return Examples(turned.to(images.dtype), examples.targets)

    return run


def random_flip(chance: float = 0.5) -> Augment:
    """Each image mirrored left to right with this probability."""

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        images = examples.inputs
        chosen = torch.rand(len(images), 1, 1, 1, generator=generator) < chance
        return Examples(torch.where(chosen, images.flip(-1), images), examples.targets)

    return run


def colour_jitter(strength: float = 0.4) -> Augment:
    """Brightness, contrast and saturation of each RGB image scaled by factors of their own, in an order of its own.

    A factor f is uniform in [max(0, 1 - strength), 1 + strength] and blends the image: f * image + (1 - f) * other, cut
    to 0..1, where `other` is black (brightness), the mean of the grey image (contrast), or the grey image (saturation);
    grey = .299 R + .587 G + .114 B. The three come in a random order, one of six with equal chance for each image.
    That they are all the same blend is what lets images with different orders share one pass.
    """

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        images = _as_float(examples.inputs).clone()
        number = len(images)
        factors = torch.empty(3, number, 1, 1, 1).uniform_(max(0.0, 1 - strength), 1 + strength, generator=generator)
        order = torch.rand(3, number, 1, 1, 1, generator=generator).argsort(0)
        for kind, factor in zip(order, factors, strict=True):
            grey = images[:, :1] * _GRAY[0]
            grey.add_(images[:, 1:2], alpha=_GRAY[1]).add_(images[:, 2:], alpha=_GRAY[2])
            mean = grey.mean((2, 3), keepdim=True).mul_(kind == 1)
            other = grey.mul_(kind == 2).add_(mean)
            images.mul_(factor).add_(other.mul_(1 - factor)).clamp_(0, 1)
        return Examples(images, examples.targets)

    return run


def normalise(moments: Moments) -> Augment:
    """An `Augment` that computes (image - mean) / std per channel; it draws nothing."""
    return lambda examples, _: normalised_examples(examples, moments)


def normalised_examples(examples: Examples, moments: Moments) -> Examples:
    """Examples with normalised images, as test sets have them."""
    return Examples(normalised(examples.inputs, moments), examples.targets)


def normalised(images: Tensor, moments: Moments) -> Tensor:
    """Floats of mean about 0 and deviation about 1, from bytes 0..255 or floats 0..1, in two passes over the data."""
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    mean, std = (torch.tensor(values).mul_(scale).view(-1, 1, 1) for values in moments)
    return images.to(torch.float32, copy=True).sub_(mean).div_(std)


def _as_float(images: Tensor) -> Tensor:
    """Images as floats 0..1."""
    return images.float().div_(255.0) if images.dtype == torch.uint8 else images


def cifar_training(
    moments: Moments, *, crop: int = 32, padding: int = 4, jitter: float = 0.4, rotation: float = 0.0
) -> Augment:
    """The augmentation of training batches in the paper's CIFAR rows.

    The federated rows jitter colours; the centralized ones turn images by up to 15 degrees instead.

    Args:
        moments: Mean and deviation of each channel, by which images are normalised.
        crop: The side of the random crop; CIFAR-100 crops to 24 without padding.
        padding: Black pixels around the image before it is cropped.
        jitter: The strength of the colour jitter; 0: none.
        rotation: The largest angle in degrees; 0: none.
    """
    steps = [random_crop(crop, padding=padding), random_flip()]
    steps += [random_rotation(rotation)] if rotation else []
    steps += [colour_jitter(jitter)] if jitter else []
    return compose(*steps, normalise(moments))


def random_volume_crop(size: tuple[int, int, int]) -> Augment:
    """A window of this size at a uniformly drawn place of each volume, the same for inputs and targets."""

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        starts = _starts(examples.inputs.shape, size, generator)
        return Examples(windows(examples.inputs, starts, size), windows(examples.targets, starts, size))

    return run


def random_volume_flip(axes: Sequence[int] = (-3, -2, -1), chance: float = 0.5) -> Augment:
    """Each volume mirrored along each of these axes with this probability, inputs and targets together."""

    def run(examples: Examples, generator: torch.Generator) -> Examples:
        inputs, targets = examples.inputs, examples.targets
        for axis in axes:
            chosen = torch.rand(len(inputs), generator=generator) < chance
            inputs, targets = _flipped(inputs, axis, chosen), _flipped(targets, axis, chosen)
        return Examples(inputs, targets)

    return run


def volume_training(crop: tuple[int, int, int] | None, *, flips: bool) -> Augment | None:
    """The augmentation of training batches of volumes: a random crop and flips along every axis; None for neither."""
    steps = ([random_volume_crop(crop)] if crop else []) + ([random_volume_flip()] if flips else [])
    return compose(*steps) if steps else None


def _flipped(values: Tensor, axis: int, chosen: Tensor) -> Tensor:
    """The values, with those examples mirrored along an axis that were chosen."""
    return torch.where(chosen.view(-1, *[1] * (values.dim() - 1)), values.flip(axis), values)


def _starts(shape: torch.Size, size: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Where the window of each example begins, along each of the last axes."""
    room = [have - want + 1 for have, want in zip(shape[-len(size) :], size, strict=True)]
    if min(room) < 1:
        raise DataError(
            f"a crop of {tuple(size)} does not fit into {tuple(shape[-len(size) :])}: choose a smaller crop"
        )
    return [torch.randint(places, (shape[0],), generator=generator) for places in room]


def windows(values: Tensor, starts: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """For example i, the part of the last axes that begins at `starts[axis][i]` and has this size, in one gather.

    >>> windows(torch.arange(8).view(2, 4), [torch.tensor([0, 2])], [2])
    tensor([[0, 1],
            [6, 7]])
    """
    first = values.dim() - len(size)
    for axis, length in enumerate(size):
        values = values.unfold(first + axis, length, 1)
    lead = [slice(None)] * (first - 1)
    index: list[Any] = [torch.arange(len(values)), *lead, *starts]
    return values[tuple(index)]
