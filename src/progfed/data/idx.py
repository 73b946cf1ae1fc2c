"""MNIST and Fashion-MNIST from their idx files, compressed or not."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from progfed.data import augment
from progfed.data.integrity import MEGABYTE, check_digest, damaged, missing, read_file
from progfed.data.partition import federate, split
from progfed.population import Examples, FederatedData

_CAP = 256 * MEGABYTE
_SETS = ("train", "t10k")


@dataclass(frozen=True)
class Layout:
    """A folder of four idx files; the MD5s are of the files' content, whether it is stored compressed or not."""

    name: str
    folder: str
    digests: Mapping[str, str]
    moments: augment.Moments
    classes: int = 10


MNIST = Layout(
    name="mnist",
    folder="mnist",
    digests={
        "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
    },
    moments=augment.MNIST,
)
FASHION_MNIST = Layout(
    name="fashion-mnist",
    folder="fashion-mnist",
    digests={
        "train-images-idx3-ubyte": "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "md5:9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "md5:8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "md5:15d484375f8d13e6eb1aabb0c3f46965",
    },
    moments=augment.FASHION_MNIST,
)


def mnist(
    root: Path, *, clients: int = 100, partition: str = "iid", seed: int = 0, verify: bool = True
) -> FederatedData:
    """MNIST (LeCun et al. 1998) over clients: floats `[n, 1, 28, 28]`, normalised.

    Args:
        root: The folder of data.
        clients: The number of clients.
        partition: How examples are shared out: see `progfed.data.partition.split`.
        seed: What the partition is drawn from.
        verify: Whether the published hashes are checked.
    """
    return load(root, MNIST, clients=clients, partition=partition, seed=seed, verify=verify)


def fashion_mnist(
    root: Path, *, clients: int = 100, partition: str = "iid", seed: int = 0, verify: bool = True
) -> FederatedData:
    """Fashion-MNIST (Xiao et al. 2017) over clients: floats `[n, 1, 28, 28]`, normalised.

    Its arguments are those of `mnist`.
    """
    return load(root, FASHION_MNIST, clients=clients, partition=partition, seed=seed, verify=verify)


def load(root: Path, layout: Layout, *, clients: int, partition: str, seed: int, verify: bool) -> FederatedData:
    """Any data set of four idx files; bytes stay in memory, and a client's are normalised when it is asked for."""
    train, test = (_examples(Path(root), layout, which, verify=verify) for which in _SETS)

    def prepare(examples: Examples) -> Examples:
        return Examples(augment.normalised(examples.inputs, layout.moments), examples.targets)

    parts = split(partition, train.targets, clients, seed=seed)
    return federate(train, parts, lambda: prepare(test), prepare=prepare, classes=layout.classes, name=layout.name)


def locate(root: Path, layout: Layout, name: str) -> Path:
    """Where one idx file is: in the data set's folder, with or without `.gz`."""
    for folder in (root / layout.folder, root):
        for path in (folder / f"{name}.gz", folder / name):
            if path.exists():
                return path
    needed = f"put the four idx files there, or run `progfed data fetch {layout.name}`"
    raise missing(root / layout.folder / f"{name}.gz", needed)


def read_idx(path: Path, *, axes: int, digest: str | None = None) -> Tensor:
    """The bytes of one idx file as a tensor with this number of axes; every byte of the file must be accounted for."""
    content = read_file(path, cap=_CAP)
    if digest is not None:
        check_digest(path, content, digest)
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes([0, 0, 8, axes]):
        raise damaged(path, f"is not an idx file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if math.prod(shape) != len(content) - header or shape[0] == 0:
        raise damaged(path, f"declares {' x '.join(map(str, shape))} bytes and holds {len(content) - header}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _examples(root: Path, layout: Layout, which: str, *, verify: bool) -> Examples:
    names = f"{which}-images-idx3-ubyte", f"{which}-labels-idx1-ubyte"
    paths = [locate(root, layout, name) for name in names]
    digests = [layout.digests[name] if verify else None for name in names]
    images = read_idx(paths[0], axes=3, digest=digests[0])
    labels = read_idx(paths[1], axes=1, digest=digests[1]).long()
    if images.shape[1:] != (28, 28):
        raise damaged(paths[0], f"holds images of {images.shape[1]} x {images.shape[2]} where 28 x 28 belong")
    if len(labels) != len(images):
        raise damaged(paths[1], f"holds {len(labels)} labels for {len(images)} images")
    if int(labels.max()) >= layout.classes:
        raise damaged(paths[1], f"has label {int(labels.max())}, outside the {layout.classes} classes")
    return Examples(images.unsqueeze(1), labels)
