"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their canonical archives or extracted folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progfed.data import augment as augmentation
from progfed.data.archives import members
from progfed.data.integrity import MEGABYTE, check_digest, check_file, damaged, missing, read_file, reading
from progfed.data.partition import federate, split
from progfed.data.pickles import load_arrays
from progfed.population import Augment, Examples, FederatedData


@dataclass(frozen=True)
class Layout:
    """The file names and MD5s of CIFAR-10 or CIFAR-100; `labels` is the key of classes, `groups` of coarser ones."""

    name: str
    folder: str
    archive: str
    archive_digest: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    classes: int
    labels: str
    groups: str | None = None

    @property
    def needed(self) -> str:
        return f"put {self.archive} or the folder {self.folder} there, or run `progfed data fetch {self.name}`"


CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_digest="md5:c58f30108f718f92721af3b95e74349a",
    train={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "md5:40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888"},
    classes=10,
    labels="labels",
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    archive_digest="md5:eb9058c3a382ffc7106e4002c42a8d85",
    train={"train": "md5:16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "md5:7973b15100ade9c7d40fb424638fde48"},
    classes=100,
    labels="fine_labels",
    groups="coarse_labels",
)

_FILE_CAP = 200 * MEGABYTE
_ARCHIVE_CAP = 400 * MEGABYTE


@dataclass(frozen=True)
class _Table:
    """Images with their labels and coarser labels."""

    images: np.ndarray
    labels: Tensor
    groups: Tensor | None


def cifar10(
    root: Path, *, clients: int = 100, partition: str = "iid", seed: int = 0, augment: bool = True, verify: bool = True
) -> FederatedData:
    """CIFAR-10 over clients; training batches are cropped (32, padding 4), flipped, jittered and normalised.

    Clients hold bytes `[n, 3, 32, 32]`, which the data's `augment` makes floats. The test set is normalised.

    Args:
        root: The folder with the archive or its extracted folder.
        clients: The number of clients.
        partition: How examples are shared out: see `progfed.data.partition.split`.
        seed: What the partition is drawn from.
        augment: Whether training batches are augmented; False: only normalised.
        verify: Whether the published hashes are checked. False is for files of your own in this layout; their content
            is checked all the same.
    """
    steps = augmentation.cifar_training(augmentation.CIFAR10) if augment else None
    train, test = _tables(root, CIFAR10, verify=verify)
    parts = split(partition, train.labels, clients, seed=seed)
    return _federated(train, test, parts, steps, augmentation.CIFAR10, CIFAR10)


def cifar100(
    root: Path,
    *,
    clients: int = 500,
    partition: str = "pachinko",
    seed: int = 0,
    augment: bool = True,
    crop: int = 24,
    padding: int = 0,
    jitter: float = 0.4,
    rotation: float = 0.0,
    verify: bool = True,
) -> FederatedData:
    """CIFAR-100 over clients, like `cifar10`, but training crops are 24 x 24 without padding; the test stays at 32.

    Args:
        root: The folder with the archive or its extracted folder.
        clients: The number of clients.
        partition: How examples are shared out: see `progfed.data.partition.split`.
        seed: What the partition is drawn from.
        augment: Whether training batches are augmented; False: only normalised.
        crop: The side of training crops.
        padding: Black pixels around the image before it is cropped.
        jitter: The strength of the colour jitter; 0: none.
        rotation: The largest angle in degrees by which images are turned; 0: none.
        verify: Whether the published hashes are checked.
    """
    steps = augmentation.cifar_training(
        augmentation.CIFAR100, crop=crop, padding=padding, jitter=jitter, rotation=rotation
    )
    train, test = _tables(root, CIFAR100, verify=verify)
    parts = split(partition, train.labels, clients, seed=seed, groups=train.groups)
    return _federated(train, test, parts, steps if augment else None, augmentation.CIFAR100, CIFAR100)


def _federated(
    train: _Table,
    test: _Table,
    parts: tuple[Tensor, ...],
    steps: Augment | None,
    moments: augmentation.Moments,
    layout: Layout,
) -> FederatedData:
    return federate(
        Examples(torch.from_numpy(train.images), train.labels),
        parts,
        lambda: Examples(augmentation.normalised(torch.from_numpy(test.images), moments), test.labels),
        classes=layout.classes,
        augment=steps or augmentation.normalise(moments),
        plain=partial(augmentation.normalised_examples, moments=moments),
        name=layout.name,
    )


def _tables(root: Path, layout: Layout, *, verify: bool) -> tuple[_Table, _Table]:
    contents = dict(_contents(Path(root), layout, verify=verify))
    tables = {}
    for name, (path, content) in contents.items():
        decoded = load_arrays(content, path, scan=not verify)
        if name not in layout.meta:
            tables[name] = _table(decoded, path, layout)
    return _joined([tables[name] for name in layout.train]), _joined([tables[name] for name in layout.test])


def _contents(root: Path, layout: Layout, *, verify: bool) -> Iterator[tuple[str, tuple[Path, bytes]]]:
    """The name, path and bytes of every file, checked; from the extracted folder if it exists, else the archive."""
    digests = {**layout.train, **layout.test, **layout.meta}
    folder, archive = root / layout.folder, root / layout.archive
    if not folder.is_dir() and not archive.exists():
        raise missing(folder, layout.needed)
    source = (
        _from_folder(folder, digests, layout) if folder.is_dir() else _from_archive(archive, digests, layout, verify)
    )
    found = set()
    for name, path, content in source:
        if verify:
            check_digest(path, content, digests[name])
        found.add(name)
        yield name, (path, content)
    if lost := sorted(set(digests) - found):
        raise damaged(archive, f"does not hold {layout.folder}/{lost[0]}")


def _from_folder(folder: Path, names: Mapping[str, str], layout: Layout) -> Iterator[tuple[str, Path, bytes]]:
    for name in names:
        yield name, folder / name, read_file(folder / name, cap=_FILE_CAP, needed=layout.needed)


def _from_archive(
    archive: Path, names: Mapping[str, str], layout: Layout, verify: bool
) -> Iterator[tuple[str, Path, bytes]]:
    if verify:
        check_file(archive, layout.archive_digest)
    wanted = {f"{layout.folder}/{name}": name for name in names}
    for member, stream in members(archive, wanted.__contains__, cap=_ARCHIVE_CAP):
        with reading(archive):
            content = stream.read()
        yield wanted[member], archive / member, content


def _table(decoded: dict[str, Any], path: Path, layout: Layout) -> _Table:
    data = decoded.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or len(data) == 0:
        raise damaged(path, "does not hold images of 3 x 32 x 32 bytes under the key 'data'")
    labels = _labels(decoded, layout.labels, len(data), layout.classes, path)
    groups = None if layout.groups is None else _labels(decoded, layout.groups, len(data), layout.classes, path)
    return _Table(data.reshape(-1, 3, 32, 32), labels, groups)


def _labels(decoded: dict[str, Any], key: str, number: int, classes: int, path: Path) -> Tensor:
    values = decoded.get(key)
    if not isinstance(values, list) or len(values) != number or not all(type(value) is int for value in values):
        raise damaged(path, f"does not hold one label for each of its {number} images under the key {key!r}")
    if min(values) < 0 or max(values) >= classes:
        bad = min(values) if min(values) < 0 else max(values)
        raise damaged(path, f"has label {bad}, outside the {classes} classes 0 to {classes - 1}")
    return torch.tensor(values, dtype=torch.int64)


def _joined(tables: list[_Table]) -> _Table:
    groups = [table.groups for table in tables if table.groups is not None]
    return _Table(
        np.concatenate([table.images for table in tables]),
        torch.cat([table.labels for table in tables]),
        torch.cat(groups) if groups else None,
    )
