"""Broken and hostile idx files."""

import struct
from pathlib import Path

import pytest

from progfed.data import idx
from reliability import data_files as files

from .hostile import Case, changed, refused, refused_once_spoiled, unzipped

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def images(root: Path) -> Path:
    return root / "mnist" / IMAGES


def labels(root: Path) -> Path:
    return root / "mnist" / LABELS


def header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


IDX: dict[str, Case] = {
    "missing": (IMAGES, lambda root: images(root).unlink()),
    "truncated gzip": (IMAGES, changed(images, lambda content: content[:-200])),
    "a wrong checksum inside gzip": (
        IMAGES,
        changed(images, lambda old: old[:-8] + b"\0\0\0\0" + old[-4:]),
    ),
    "not gzip": (LABELS, changed(labels, lambda _: b"plain text")),
    "truncated content": (IMAGES, unzipped(images, lambda content: content[:-1])),
    "bytes behind the end": (LABELS, unzipped(labels, lambda content: content + b"\0")),
    "a wrong magic number": (IMAGES, unzipped(images, lambda content: b"\0\0\x0d\x03" + content[4:])),
    "labels in the place of images": (IMAGES, unzipped(images, lambda _: header(4) + bytes(4))),
    "an empty file": (LABELS, unzipped(labels, lambda _: b"")),
    "a shape of 2^96": (IMAGES, unzipped(images, lambda _: header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(9))),
    "no images": (IMAGES, unzipped(images, lambda _: header(0, 28, 28))),
    "images of another size": (IMAGES, unzipped(images, lambda _: header(10, 27, 28) + bytes(10 * 27 * 28))),
    "a label less": (LABELS, unzipped(labels, lambda _: header(9) + bytes(9))),
    "a label 10": (LABELS, unzipped(labels, lambda _: header(10) + bytes(9) + b"\x0a")),
    "a bomb": (IMAGES, unzipped(images, lambda _: header(1 << 13, 1 << 5, 1 << 5) + bytes(1 << 23))),
}


@pytest.mark.parametrize("case", IDX)
def test_a_broken_idx_file_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "_CAP", 1 << 20)
    files.write_idx(tmp_path, idx.MNIST, number=10)
    refused_once_spoiled(tmp_path, lambda: idx.mnist(tmp_path, clients=2, verify=False), IDX[case])


def test_an_idx_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    files.write_idx(tmp_path, idx.MNIST, number=10)
    assert "not the published file" in refused(tmp_path, lambda: idx.mnist(tmp_path, clients=2), IMAGES)
