"""Medical volumes: reading NIfTI safely, normalising each volume, and giving all of them one size."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from progfed import rng
from progfed.data.integrity import MEGABYTE, damaged, optional, read_file, read_start, reading
from progfed.data.partition import Parts
from progfed.errors import UsageError
from progfed.population import Augment, Examples, FederatedData

Size = tuple[int, int, int]
_CAP = 512 * MEGABYTE
_VOXELS = 1 << 28  # 512 x 512 x 1024
_SMALL, _RATIO = 64 * MEGABYTE, 200
"""A larger image is not decompressed where the file would grow by more than this: scans have noise, which does not
compress, so it is none."""
_HEADER, _BEYOND = 348, MEGABYTE


def read_nifti(path: Path, *, shape: Sequence[int] | None = None, needed: str = "put the volume there") -> np.ndarray:
    """The values of a `.nii` or `.nii.gz` file of this shape, if one is given.

    The header is read first. What is more than a volume can have is never decompressed, and the header must fit the
    bytes.
    """
    nibabel = optional("nibabel", "medical")
    declared = _declared(nibabel, path, read_start(path, _HEADER, needed=needed), shape)
    content = read_file(path, cap=declared + _BEYOND, needed=needed)
    with reading(path):
        try:
            values = _decoded(nibabel, content, declared)
        except Exception as error:  # a header can be wrong in more ways than nibabel has names for
            raise ValueError(f"not a NIfTI volume: {error}") from error
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise damaged(path, "holds values that are not finite")
    return values


def _declared(nibabel: Any, path: Path, start: bytes, shape: Sequence[int] | None) -> int:
    """How many bytes a file decompresses to by its header, which is checked."""
    with reading(path):
        try:
            with _quiet(nibabel.imageglobals.logger):
                header = nibabel.Nifti1Header(start)
            kind, found, offset = header.get_data_dtype(), header.get_data_shape(), header.get_data_offset()
        except Exception as error:
            raise ValueError(f"not a NIfTI volume: {error}") from error
        if kind.kind not in "uif" or len(found) not in (3, 4) or min(found) < 1 or not 0 <= offset <= _CAP:
            raise ValueError(f"not a NIfTI volume: its values have type {kind} and shape {found}")
    if shape is not None and tuple(found) != tuple(shape):
        raise damaged(path, f"has shape {tuple(found)} where its image has {tuple(shape)}")
    voxels = math.prod(found)
    declared = offset + voxels * kind.itemsize
    swells = shape is None and declared > max(
        _SMALL, _RATIO * path.stat().st_size
    )  # labels are large areas of one value
    if voxels > _VOXELS or declared > _CAP or swells:
        raise damaged(path, f"declares {' x '.join(map(str, found))} values, more than such a file can have")
    return int(declared)


def _decoded(nibabel: Any, content: bytes, declared: int) -> np.ndarray:
    if declared > len(content):
        raise ValueError(f"it is cut short: its header declares {declared:,} bytes, and it has {len(content):,}")
    with _quiet(nibabel.imageglobals.logger):
        image = nibabel.Nifti1Image.from_bytes(content)
    with np.errstate(all="ignore"):  # a slope that overflows leaves values that are not finite
        values: np.ndarray = np.asanyarray(image.dataobj)
    return values


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Silence nibabel's log, which would mention each oddity that it mends in a header: one error is enough."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def read_labels(path: Path, allowed: Sequence[int], shape: Sequence[int], *, needed: str = "") -> np.ndarray:
    """A volume of integer labels of this shape, each of them allowed."""
    values = read_nifti(path, shape=shape, needed=needed)
    bad = values[~np.isin(values, allowed)]
    if len(bad):
        raise damaged(path, f"has label {bad[0]:g}, which is none of {', '.join(map(str, allowed))}")
    return values.astype(np.int64)


def normalised(volume: np.ndarray, size: Size | None = None, centre: Size | None = None) -> np.ndarray:
    """Mean 0 and deviation 1 over the voxels that are not zero; zeros, the background, stay zero.

    Intensities of magnetic resonance have no unit and differ wildly between scans, so each volume is its own measure.
    With a `size` the result is cut or padded to it as by `fit`, which takes less memory than to do so afterwards.
    """
    known = volume[volume != 0].astype(np.float64)
    mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
    values = (volume if size is None else fit(volume, size, centre)).astype(np.float64)
    scaled = np.where(values != 0, (values - mean) / (deviation if deviation > 0 else 1.0), 0.0)
    return scaled.astype(np.float32)


def centre_of(inside: np.ndarray) -> Size:
    """The middle of the box around what is true; the middle of the whole volume where nothing is."""
    if not inside.any():
        return tuple(length // 2 for length in inside.shape)
    found = [np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis))) for axis in range(3)]
    return tuple(int(places[0] + places[-1] + 1) // 2 for places in found)  # type: ignore[return-value]


def fit(volume: np.ndarray, size: Size, centre: Size | None = None) -> np.ndarray:
    """The volume with its last three axes cut, or padded with zeros, to `size` around `centre` (None: the middle)."""
    for axis, (want, have) in enumerate(zip(size, volume.shape[-3:], strict=True)):
        start = (have // 2 if centre is None else centre[axis]) - want // 2
        # A centre near the border must not cost voxels that would fit.
        start = min(max(start, min(0, have - want)), max(0, have - want))
        before, after = max(-start, 0), max(start + want - have, 0)
        at = volume.ndim - 3 + axis
        pads = [(before, after) if a == at else (0, 0) for a in range(volume.ndim)]
        volume = np.take(np.pad(volume, pads), np.arange(start + before, start + before + want), axis=at)
    return volume


def hold_out(number: int, fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions for training and for test, drawn by the seed; at least one of each."""
    if number < 2 or not 0 < fraction < 1:
        raise UsageError(
            f"{number} volumes cannot be split with {fraction} for test: at least one is needed on either side"
        )
    order = rng.numpy_generator(seed, "hold out").permutation(number)
    held = min(max(round(number * fraction), 1), number - 1)
    return np.sort(order[held:]), np.sort(order[:held])


def federated_volumes(
    read: Callable[[int], tuple[np.ndarray, np.ndarray]],
    parts: Parts,
    test: np.ndarray,
    *,
    classes: int | None,
    augment: Augment | None,
    name: str,
) -> FederatedData:
    """A population whose volumes are read when a client is asked for.

    Args:
        read: `read(i)` returns the input and the target of volume i.
        parts: The volumes of each client.
        test: The volumes of the test set.
        classes: The number of classes; None for overlapping regions.
        augment: Applied to each training batch.
        name: What errors and records call the data.
    """

    def examples(positions: Sequence[int]) -> Examples:
        first = read(int(positions[0]))
        # filled one by one: stacking a list would hold every volume twice
        inputs, targets = (np.empty((len(positions), *one.shape), one.dtype) for one in first)
        inputs[0], targets[0] = first
        for place, position in enumerate(positions[1:], start=1):
            inputs[place], targets[place] = read(int(position))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))

    return FederatedData(
        sizes=tuple(len(part) for part in parts),
        load=lambda index: examples(parts[index].tolist()),
        test=lambda: examples(test.tolist()),
        classes=classes,
        augment=augment,
        name=name,
    )
