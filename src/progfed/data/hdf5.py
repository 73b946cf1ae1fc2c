"""Reading one client of a federated HDF5 file, and nothing outside the file.

Links, external storage, virtual data sets and loadable filters are refused, and sizes are capped before reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progfed.data.integrity import MEGABYTE, damaged, optional, reading, require_file

_CLIENT_CAP = 1024 * MEGABYTE
_FILTERS = frozenset(
    {1, 2, 3, 32000}
)  # deflate, shuffle, fletcher32, lzf: built in; others would be loaded as plug-ins
_IMAGES = ("pixels", "image")


@contextmanager
def examples_of(path: Path) -> Iterator[Any]:
    """The group of all clients, while the file is open; an error inside the block becomes one that names the file."""
    h5py = optional("h5py", "hdf5")
    require_file(path, f"put {path.name} there, or run `progfed data fetch`")
    with reading(path):
        try:
            with h5py.File(path, "r") as file:
                yield _child(file, "examples", h5py.Group, path)
        except (RuntimeError, KeyError, TypeError) as error:  # what h5py raises on broken structures
            raise ValueError(str(error)) from error


def client_group(group: Any, client: str, path: Path) -> Any:
    """The group of one client."""
    return _child(group, client, optional("h5py", "hdf5").Group, path)


def _child(group: Any, name: str, kind: type, path: Path) -> Any:
    """The group or data set of this name; refused unless it really is in this file."""
    h5py = optional("h5py", "hdf5")
    where = name if name == "examples" else f"{name} (of {group.name})"
    links, key = group.id.links, name.encode()
    if not links.exists(key):
        raise damaged(path, f"has no {where}")
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise damaged(path, f"has a link at {where}, and links are not followed")
    child = group[name]
    if not isinstance(child, kind):
        raise damaged(path, f"has a {type(child).__name__.lower()} at {where}, where a {kind.__name__.lower()} belongs")
    return child


def _dataset(member: Any, name: str, path: Path) -> Any:
    h5py = optional("h5py", "hdf5")
    data = _child(member, name, h5py.Dataset, path)
    plan = data.id.get_create_plist()
    if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise damaged(path, f"keeps {data.name} in another file, which is not read")
    if not {plan.get_filter(index)[0] for index in range(plan.get_nfilters())} <= _FILTERS:
        raise damaged(path, f"compresses {data.name} with a filter that is not built in")
    chunk = math.prod(data.chunks) * data.dtype.itemsize if data.chunks else 0
    if data.dtype.kind not in "uif" or max(data.size * data.dtype.itemsize, chunk) > _CLIENT_CAP:
        raise damaged(path, f"has {data.name} of type {data.dtype} and shape {data.shape}, which no client's data has")
    return data


def label_count(member: Any, client: str, path: Path) -> int:
    """How many labels a client has, without reading them."""
    shape = _child(member, "label", optional("h5py", "hdf5").Dataset, path).shape
    if not shape:
        raise damaged(path, f"has a single value for the labels of client {client}")
    return int(shape[0])


def labels_of(member: Any, client: str, classes: int | None, path: Path) -> Tensor:
    """The labels of a client, each below `classes` where it is given."""
    data = _dataset(member, "label", path)
    if data.dtype.kind not in "ui" or data.shape not in {(data.size,), (data.size, 1)}:
        raise damaged(path, f"has labels of type {data.dtype} and shape {data.shape} for client {client}")
    labels = torch.from_numpy(data[()].astype(np.int64).reshape(-1))
    bad = labels[(labels < 0) | (labels >= (classes if classes is not None else 1 << 31))]
    if len(bad):
        raise damaged(path, f"has label {int(bad[0])} for client {client}, outside the {classes} classes")
    return labels


def images_of(member: Any, client: str, number: int, path: Path) -> Tensor:
    """Images as `[n, channels, height, width]`: floats 0..1 or bytes."""
    name = next((name for name in _IMAGES if name in member), _IMAGES[0])
    data = _dataset(member, name, path)
    if data.dtype not in (np.dtype(np.float32), np.dtype(np.uint8)) or data.ndim not in (3, 4) or len(data) != number:
        raise damaged(
            path, f"has images of type {data.dtype} and shape {data.shape} for the {number} labels of {client}"
        )
    values = data[()]
    images = torch.from_numpy(values[:, None] if values.ndim == 3 else np.ascontiguousarray(np.moveaxis(values, 3, 1)))
    if images.is_floating_point() and number and not (images.min() >= 0 and images.max() <= 1):
        raise damaged(path, f"has pixels outside 0..1 for client {client}")
    return images
