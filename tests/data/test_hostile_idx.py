"""Broken and hostile idx files."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from progfed.data import idx
from reliability import data_files as files

Case = tuple[str, Callable[[Path], None]]
Refused = Callable[[Path, Callable[[], object], str], str]


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def unzipped(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        path = root / "mnist" / name
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))

    return run


def raw(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        path = root / "mnist" / name
        path.write_bytes(change(path.read_bytes()))

    return run


def header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


IDX: dict[str, Case] = {
    "missing": (IMAGES, lambda root: (root / "mnist" / IMAGES).unlink()),
    "truncated gzip": (IMAGES, raw(IMAGES, lambda content: content[:-200])),
    "a wrong checksum inside gzip": (IMAGES, raw(IMAGES, lambda content: content[:-8] + b"\0\0\0\0" + content[-4:])),
    "not gzip": (LABELS, raw(LABELS, lambda _: b"plain text")),
    "truncated content": (IMAGES, unzipped(IMAGES, lambda content: content[:-1])),
    "bytes behind the end": (LABELS, unzipped(LABELS, lambda content: content + b"\0")),
    "a wrong magic number": (IMAGES, unzipped(IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:])),
    "labels in the place of images": (IMAGES, unzipped(IMAGES, lambda _: header(4) + bytes(4))),
    "an empty file": (LABELS, unzipped(LABELS, lambda _: b"")),
    "a shape of 2^96": (IMAGES, unzipped(IMAGES, lambda _: header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(9))),
    "no images": (IMAGES, unzipped(IMAGES, lambda _: header(0, 28, 28))),
    "images of another size": (IMAGES, unzipped(IMAGES, lambda _: header(10, 27, 28) + bytes(10 * 27 * 28))),
    "a label less": (LABELS, unzipped(LABELS, lambda _: header(9) + bytes(9))),
    "a label 10": (LABELS, unzipped(LABELS, lambda _: header(10) + bytes(9) + b"\x0a")),
    "a bomb": (IMAGES, unzipped(IMAGES, lambda _: header(1 << 13, 1 << 5, 1 << 5) + bytes(1 << 23))),
}


@pytest.mark.parametrize("case", IDX)
def test_a_broken_idx_file_is_refused(
    tmp_path: Path, refused: Refused, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "_CAP", 1 << 20)
    named, spoil = IDX[case]
    files.write_idx(tmp_path, idx.MNIST, number=10)
    assert sum(idx.mnist(tmp_path, clients=2, verify=False).sizes) == 10
    spoil(tmp_path)
    refused(tmp_path, lambda: idx.mnist(tmp_path, clients=2, verify=False), named)


def test_an_idx_file_with_another_hash_is_refused(tmp_path: Path, refused: Refused) -> None:
    files.write_idx(tmp_path, idx.MNIST, number=10)
    assert "not the published file" in refused(tmp_path, lambda: idx.mnist(tmp_path, clients=2), IMAGES)
