"""Broken data files: each is refused with one error that names it, or is intact after all; nothing is ever written."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from progfed import rng
from progfed.data import cifar, decathlon, idx, text
from progfed.data.federated_h5 import federated_h5
from progfed.errors import DataError
from progfed.population import FederatedData
from reliability import expect
from reliability.data_files import write_cifar, write_decathlon, write_federated_h5, write_idx, write_play

Damage = Callable[[Path, Random], None]


def truncated(path: Path, draw: Random) -> None:
    """The end is missing."""
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def flipped(path: Path, draw: Random) -> None:
    """Some bytes are others, most of them near the beginning where the structure is."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(min(len(data), draw.choice((16, 200, len(data)))))] = draw.randrange(256)
    path.write_bytes(data)


def emptied(path: Path, draw: Random) -> None:
    """Nothing in it."""
    path.write_bytes(b"")


def replaced(path: Path, draw: Random) -> None:
    """Something else entirely."""
    path.write_bytes(draw.randbytes(draw.randrange(1, 5000)))


def folded(path: Path, draw: Random) -> None:
    """A folder of that name."""
    path.unlink()
    path.mkdir()


def linked(path: Path, draw: Random) -> None:
    """A link to nowhere, to itself, or to a device without end."""
    path.unlink()
    path.symlink_to(draw.choice(("nowhere", path.name, "/dev/zero")))


def bombed(path: Path, draw: Random) -> None:
    """A little file that unpacks to a lot."""
    path.write_bytes(gzip.compress(bytes(draw.choice((10**6, 3 * 10**8))), 1))


SIZE = (12, 16, 10)
DAMAGES: tuple[Damage, ...] = (truncated, flipped, emptied, replaced, folded, linked, bombed)
Kind = tuple[Callable[[Path], object], Callable[[Path], FederatedData]]
KINDS: dict[str, Kind] = {
    "idx": (write_idx, lambda root: idx.fashion_mnist(root, clients=2, verify=False)),
    "CIFAR folder": (write_cifar, lambda root: cifar.cifar10(root, clients=2, verify=False)),
    "CIFAR archive": (
        lambda root: write_cifar(root, archive=True),
        lambda root: cifar.cifar10(root, clients=2, verify=False),
    ),
    "federated HDF5": (
        lambda root: write_federated_h5(root / "both.h5"),
        lambda root: federated_h5(root, train="both.h5", test="both.h5", classes=10),
    ),
    "NIfTI": (
        lambda root: write_decathlon(root, cases=3),
        lambda root: decathlon.decathlon(root, clients=1, size=SIZE),
    ),
    "text": (write_play, lambda root: text.by_speaker(root / "play.txt", context=8, minimum=10)),
}


def broken_files(count: int, folder: Path, *, seed: int = 0) -> int:
    """Break files in all ways in turn, load them; how many were refused."""
    draw, refused = Random(rng.number(seed, "files")), 0
    for number in range(count):
        name = list(KINDS)[number % len(KINDS)]
        damage = DAMAGES[number // len(KINDS) % len(DAMAGES)]
        write, load = KINDS[name]
        root = folder / "data"
        root.mkdir()
        write(root)
        broken = draw.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        damage(broken, draw)
        refused += _refused(load, root, broken, f"{name}, {damage.__name__} (number {number}, seed {seed})")
        shutil.rmtree(root)
    return refused


def _refused(load: Callable[[Path], FederatedData], root: Path, broken: Path, where: str) -> bool:
    before = _names(root)
    refused = False
    try:
        data = load(root)
        data.client(0), data.test_examples()
    except DataError as error:
        refused = True
        expect(
            broken.name in str(error) or broken.parent.name in str(error), f"{where}: {error} does not name the file"
        )
    except Exception as error:
        expect(False, f"{where}: {type(error).__name__}: {error}")
    expect(_names(root) == before, f"{where}: something was written")
    return refused


def _names(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for path in root.rglob("*"))
