"""Data in the federated HDF5 layout: `/examples/<client>/{pixels or image, label}`, a client read when it is asked for.

The file is opened for each client and closed again, so that no handle crosses a fork into a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from progfed.data import augment as augmentation
from progfed.data.hdf5 import client_group, examples_of, images_of, label_count, labels_of
from progfed.data.integrity import damaged
from progfed.population import Augment, Examples, FederatedData


@dataclass(frozen=True)
class Source:
    """One file: its clients, how many examples each has, and which labels count (with `below`, those under it)."""

    path: Path
    clients: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: int
    moments: augmentation.Moments | None
    below: int | None = None
    invert: bool = False

    def load(self, index: int) -> Examples:
        """The examples of one client, checked."""
        with examples_of(self.path) as group:
            return self._read(group, self.clients[index])

    def everything(self) -> Examples:
        """The examples of all clients, in their order."""
        with examples_of(self.path) as group:
            pieces = [self._read(group, client) for client in self.clients]
        return Examples(torch.cat([piece.inputs for piece in pieces]), torch.cat([piece.targets for piece in pieces]))

    def _read(self, group: Any, client: str) -> Examples:
        member = client_group(group, client, self.path)
        labels = labels_of(member, client, self.classes if self.below is None else None, self.path)
        images = images_of(member, client, len(labels), self.path)
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

    Images become `[n, channels, height, width]`.

    Args:
        root: The folder of the two files.
        train: The name of the file with the clients.
        test: The name of the file with the test examples.
        classes: The number of classes.
        moments: Mean and deviation by which images are normalised when they are loaded; with `augment` the clients' are
            not, and `augment` has to normalise them.
        augment: Applied to training batches.
        below: Leave out labels from this number on, and clients that have no others.
        invert: Turn dark on light into light on dark.
        name: What errors and records call the data.
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
        plain=partial(augmentation.normalised_examples, moments=moments) if augment and moments else None,
    )


Function = TypeVar("Function", bound=Callable[..., FederatedData])


def _identified(identity: str) -> Callable[[Function], Function]:
    """Give a function another name in the identity of experiments, since its default data differ from earlier runs'."""

    def name(function: Function) -> Function:
        function.identity = identity  # type: ignore[attr-defined]
        return function

    return name


@_identified("progfed.data.federated_h5:emnist with ink 1")
def emnist(root: Path, *, digits: bool = False, invert: bool = True, verify: bool = True) -> FederatedData:
    """Federated EMNIST by writer: 3,400 writers and 62 classes, or only the ten digits.

    Args:
        root: The folder of the HDF5 files.
        digits: Only digits: from `fed_emnist_digitsonly_*.h5` where it exists, else picked from the full file.
        invert: Make ink 1.0, where the file has 1.0 for paper. MNIST's mean and deviation are for ink 1.0: with them
            the inputs have mean 0, and without `invert` 2.4.
        verify: Whether the numbers of writers and examples must be the published ones.
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
        name=("emnist-digits" if digits else "emnist") + _ink(invert),
    )
    if verify and not digits:
        _check_counts(data, Path(root) / f"{stem}_train.h5", clients=3400, examples=671_585)
    if verify and own:
        _check_counts(data, Path(root) / f"{stem}_train.h5", clients=3383, examples=341_873)
    return data


def fed_cifar100(root: Path, *, augment: bool = True, verify: bool = True) -> FederatedData:
    """The published federated CIFAR-100: 500 clients of 100 images, and the 100 test clients together.

    Args:
        root: The folder of the HDF5 files.
        augment: Whether training batches are cropped, flipped and jittered; False: only normalised.
        verify: Whether the numbers of clients and examples must be the published ones.
    """
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
        _check_counts(data, Path(root) / "fed_cifar100_train.h5", clients=500, examples=50_000)
    return data


@_identified("progfed.data.federated_h5:mnist_by_writer with ink 1")
def mnist_by_writer(root: Path, *, invert: bool = True, verify: bool = True) -> FederatedData:
    """MNIST grouped by its real writers: 539 writers of 60,000 images, and 297 other writers for the test.

    Args:
        root: The folder of the HDF5 files.
        invert: Make ink 1.0, where the file has 1.0 for paper; MNIST's mean and deviation are for ink 1.0.
        verify: Whether the numbers of writers and examples must be the published ones.
    """
    data = federated_h5(
        root,
        train="fed_mnist_by_writer_train.h5",
        test="fed_mnist_by_writer_test.h5",
        classes=10,
        moments=augmentation.MNIST,
        invert=invert,
        name="mnist-by-writer" + _ink(invert),
    )
    if verify:
        _check_counts(data, Path(root) / "fed_mnist_by_writer_train.h5", clients=539, examples=60_000)
    return data


def _ink(inverted: bool) -> str:
    """The end of the data's name, which makes a run on inverted images another experiment than one without."""
    return " with ink 1" if inverted else ""


def _check_counts(data: FederatedData, path: Path, *, clients: int, examples: int) -> None:
    """Refuse a file that has not as many clients and examples as the published one."""
    if (data.clients, sum(data.sizes)) != (clients, examples):
        found = f"{data.clients:,} clients with {sum(data.sizes):,} examples"
        raise damaged(path, f"has {found} where the published file has {clients:,} with {examples:,}")


def open_source(
    path: Path, *, classes: int, moments: augmentation.Moments | None, below: int | None = None, invert: bool = False
) -> Source:
    """Read only the names and sizes of the clients of a file; a client without examples is left out."""
    with examples_of(path) as group:
        sized = [(name, _size(client_group(group, name, path), name, below, path)) for name in sorted(group)]
    held = [(name, size) for name, size in sized if size]
    if not held:
        raise damaged(path, "has no client with examples under /examples")
    return Source(path, tuple(n for n, _ in held), tuple(s for _, s in held), classes, moments, below, invert)


def _size(member: Any, client: str, below: int | None, path: Path) -> int:
    """How many examples of a client count."""
    if below is None:
        return label_count(member, client, path)
    return int((labels_of(member, client, None, path) < below).sum())
