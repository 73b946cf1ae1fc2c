"""Data in the federated HDF5 layout: `/examples/<client>/{pixels or image, label}`, a client read when it is asked for.

The file is opened for each client and closed again, so that no handle crosses a fork into a worker process. Links,
external storage, virtual data sets and loadable filters are refused: nothing outside the file is ever read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progfed.data import augment as augmentation
from progfed.data.integrity import MEGABYTE, damaged, optional, reading, require_file
from progfed.examples import Augment, Examples, FederatedData

_CLIENT_CAP = 1024 * MEGABYTE
_FILTERS = frozenset(
    {1, 2, 3, 32000}
)  # deflate, shuffle, fletcher32, lzf: built in; others would be loaded as plug-ins
_IMAGES = ("pixels", "image")


@dataclass(frozen=True)
class Source:
    """One file: its clients, how many examples each has, and the labels that count (`below` keeps labels under it)."""

    path: Path
    clients: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: int
    moments: augmentation.Moments | None
    below: int | None = None
    invert: bool = False

    def load(self, index: int) -> Examples:
        """The examples of one client, checked."""
        with _examples(self.path) as group:
            return self._read(group, self.clients[index])

    def everything(self) -> Examples:
        """The examples of all clients, in their order."""
        with _examples(self.path) as group:
            pieces = [self._read(group, client) for client in self.clients]
        return Examples(torch.cat([piece.inputs for piece in pieces]), torch.cat([piece.targets for piece in pieces]))

    def _read(self, group: Any, client: str) -> Examples:
        member = _member(group, client, self.path)
        labels = _labels(member, client, self.classes if self.below is None else None, self.path)
        images = _images(member, client, len(labels), self.path)
        if self.below is not None:
            kept = labels < self.below
            labels, images = labels[kept], images[kept]
        if self.invert:
            images = 255 - images if images.dtype == torch.uint8 else 1 - images
        return Examples(images if self.moments is None else augmentation.normalised(images, self.moments), labels)


def federated_h5(
    root: Path,
    *,
    train: str,
    test: str,
    classes: int,
    moments: augmentation.Moments | None = None,
    augment: Augment | None = None,
    below: int | None = None,
    invert: bool = False,
    name: str = "federated data",
) -> FederatedData:
    """Any data in this layout: the clients of the `train` file, and all examples of the `test` file together.

    Images become `[n, channels, height, width]`. With `moments` they are normalised when they are loaded, except that
    with `augment` the clients' stay as they are in the file, and `augment` is to normalise them. `below` leaves out
    labels from that number on (and clients that have no others). `invert` turns dark on light into light on dark.
    """
    at = Path(root)
    options = {"classes": classes, "below": below, "invert": invert}
    clients = open_source(at / train, moments=None if augment else moments, **options)  # type: ignore[arg-type]
    held_out = open_source(at / test, moments=moments, **options)  # type: ignore[arg-type]
    return FederatedData(
        sizes=clients.sizes,
        load=clients.load,
        test=held_out.everything,
        classes=classes,
        augment=augment,
        name=name,
    )


def emnist(root: Path, *, digits: bool = False, invert: bool = False, verify: bool = True) -> FederatedData:
    """Federated EMNIST by writer: 3,400 writers and 62 classes, or with `digits` the ten digits only.

    Pixels are as in the file (1.0 = paper) and normalised as in the public settings; `invert` makes ink 1.0 first.
    Digits come from `fed_emnist_digitsonly_*.h5` when it is there, else they are picked from the full file.
    `verify=False` accepts other numbers of writers and examples than the published ones.
    """
    own = digits and (Path(root) / "fed_emnist_digitsonly_train.h5").exists()
    stem = "fed_emnist_digitsonly" if own else "fed_emnist"
    data = federated_h5(
        root,
        train=f"{stem}_train.h5",
        test=f"{stem}_test.h5",
        classes=10 if digits else 62,
        below=10 if digits and not own else None,
        moments=augmentation.MNIST,
        invert=invert,
        name="emnist-digits" if digits else "emnist",
    )
    if verify and not digits:
        check_counts(data, Path(root) / f"{stem}_train.h5", clients=3400, examples=671_585)
    if verify and own:
        check_counts(data, Path(root) / f"{stem}_train.h5", clients=3383, examples=341_873)
    return data


def fed_cifar100(root: Path, *, augment: bool = True, verify: bool = True) -> FederatedData:
    """The published federated CIFAR-100: 500 clients of 100 images, and the 100 test clients together."""
    steps = augmentation.cifar_training(augmentation.CIFAR100, crop=24, padding=0)
    data = federated_h5(
        root,
        train="fed_cifar100_train.h5",
        test="fed_cifar100_test.h5",
        classes=100,
        moments=augmentation.CIFAR100,
        augment=steps if augment else augmentation.normalise(augmentation.CIFAR100),
        name="fed-cifar100",
    )
    if verify:
        check_counts(data, Path(root) / "fed_cifar100_train.h5", clients=500, examples=50_000)
    return data


def mnist_by_writer(root: Path, *, invert: bool = False, verify: bool = True) -> FederatedData:
    """MNIST grouped by its real writers: 539 writers of 60,000 images, and 297 other writers for the test."""
    data = federated_h5(
        root,
        train="fed_mnist_by_writer_train.h5",
        test="fed_mnist_by_writer_test.h5",
        classes=10,
        moments=augmentation.MNIST,
        invert=invert,
        name="mnist-by-writer",
    )
    if verify:
        check_counts(data, Path(root) / "fed_mnist_by_writer_train.h5", clients=539, examples=60_000)
    return data


def check_counts(data: FederatedData, path: Path, *, clients: int, examples: int) -> None:
    """Refuse a file that lacks clients or examples of the published one."""
    if (data.clients, sum(data.sizes)) != (clients, examples):
        found = f"{data.clients:,} clients with {sum(data.sizes):,} examples"
        raise damaged(path, f"has {found} where the published file has {clients:,} with {examples:,}")


def open_source(
    path: Path, *, classes: int, moments: augmentation.Moments | None, below: int | None = None, invert: bool = False
) -> Source:
    """Read the names and sizes of the clients of a file, and nothing else; a client without examples is left out."""
    with _examples(path) as group:
        sized = [(name, _size(_member(group, name, path), name, below, path)) for name in sorted(group)]
    held = [(name, size) for name, size in sized if size]
    if not held:
        raise damaged(path, "has no client with examples under /examples")
    return Source(path, tuple(n for n, _ in held), tuple(s for _, s in held), classes, moments, below, invert)


@contextmanager
def _examples(path: Path) -> Iterator[Any]:
    h5py = optional("h5py", "hdf5")
    require_file(path, f"put {path.name} there, or run `progfed data fetch`")
    with reading(path):
        try:
            with h5py.File(path, "r") as file:
                yield _child(file, "examples", h5py.Group, path)
        except (RuntimeError, KeyError, TypeError) as error:  # what h5py raises on broken structures
            raise ValueError(str(error)) from error


def _member(group: Any, client: str, path: Path) -> Any:
    return _child(group, client, optional("h5py", "hdf5").Group, path)


def _child(group: Any, name: str, kind: type, path: Path) -> Any:
    """A group or data set that is really in this file, by its name."""
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


def _size(member: Any, client: str, below: int | None, path: Path) -> int:
    if below is not None:
        return int((_labels(member, client, None, path) < below).sum())
    shape = _child(member, "label", optional("h5py", "hdf5").Dataset, path).shape
    if not shape:
        raise damaged(path, f"has a single value for the labels of client {client}")
    return int(shape[0])


def _labels(member: Any, client: str, classes: int | None, path: Path) -> Tensor:
    data = _dataset(member, "label", path)
    if data.dtype.kind not in "ui" or data.shape not in {(data.size,), (data.size, 1)}:
        raise damaged(path, f"has labels of type {data.dtype} and shape {data.shape} for client {client}")
    labels = torch.from_numpy(data[()].astype(np.int64).reshape(-1))
    bad = labels[(labels < 0) | (labels >= (classes if classes is not None else 1 << 31))]
    if len(bad):
        raise damaged(path, f"has label {int(bad[0])} for client {client}, outside the {classes} classes")
    return labels


def _images(member: Any, client: str, number: int, path: Path) -> Tensor:
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
