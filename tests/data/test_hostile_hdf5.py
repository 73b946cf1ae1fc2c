"""Broken and hostile federated HDF5 files: links, storage elsewhere, foreign filters, lying sizes, wrong labels."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from progfed.data import federated_h5
from reliability import data_files as files

from .hostile import Case, Spoil, cut, refused, refused_once_spoiled

H5 = "fed_emnist_train.h5"


def edited(edit: Callable[[h5py.File], object]) -> Spoil:
    def run(root: Path) -> None:
        with h5py.File(root / H5, "r+") as file:
            edit(file)

    return run


def client(file: h5py.File) -> h5py.Group:
    return file["examples/f0001_00"]


def put(name: str, values: object) -> Spoil:
    def edit(file: h5py.File) -> None:
        del client(file)[name]
        client(file)[name] = values

    return edited(edit)


def made(name: str, **options: object) -> Spoil:
    def edit(file: h5py.File) -> None:
        del client(file)[name]
        client(file).create_dataset(name, **options)

    return edited(edit)


def linked(where: str, link: object) -> Spoil:
    def edit(file: h5py.File) -> None:
        del file[where]
        file[where] = link

    return edited(edit)


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "i4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "label", (4,))
    del client(file)["label"]
    client(file).create_virtual_dataset("label", layout)


OUTSIDE = h5py.ExternalLink("/etc/hostname", "/examples")
FEDERATED: dict[str, Case] = {
    "missing": (H5, lambda root: (root / H5).unlink()),
    "truncated": (H5, cut(lambda root: root / H5)),
    "not HDF5": (H5, lambda root: (root / H5).write_text("hello") and None),
    "empty": (H5, lambda root: (root / H5).write_bytes(b"") and None),
    "no examples": (H5, edited(lambda file: file.move("examples", "data"))),
    "no clients": (H5, edited(lambda file: file["examples"].clear())),
    "an external link for all examples": (H5, linked("examples", OUTSIDE)),
    "an external link for a client": (H5, linked("examples/f0001_00", OUTSIDE)),
    "a soft link for a client": (H5, linked("examples/f0001_00", h5py.SoftLink("/examples/f0000_00"))),
    "a dangling soft link for a client": (H5, linked("examples/f0001_00", h5py.SoftLink("/nowhere"))),
    "an external link for labels": (H5, linked("examples/f0001_00/label", OUTSIDE)),
    "a soft link for pixels": (H5, linked("examples/f0001_00/pixels", h5py.SoftLink("/examples/f0000_00/pixels"))),
    "labels stored in another file": (
        H5,
        made("label", shape=(4,), dtype="i4", external=[("/etc/passwd", 0, 16)]),
    ),
    "virtual labels": (H5, edited(virtual)),
    "no labels": (H5, edited(lambda file: client(file).pop("label"))),
    "no pixels": (H5, edited(lambda file: client(file).pop("pixels"))),
    "a data set for a client": (H5, linked("examples/f0001_00", np.zeros(3))),
    "a group for labels": (H5, edited(lambda file: (client(file).pop("label"), client(file).create_group("label")))),
    "a label 62": (H5, put("label", np.array([0, 62], "i4"))),
    "a label -1": (H5, put("label", np.array([0, -1], "i4"))),
    "labels with fractions": (H5, put("label", np.array([0.5, 1.5]))),
    "labels as text": (H5, put("label", [b"a", b"b"])),
    "labels in a square": (H5, put("label", np.zeros((2, 2), "i4"))),
    "a scalar label": (H5, put("label", np.int32(3))),
    "more labels than pixels": (H5, put("label", np.zeros(50, "i4"))),
    "pixels of 64 bits": (H5, put("pixels", np.zeros((4, 28, 28)))),
    "pixels without rows": (H5, put("pixels", np.zeros((4, 784), "f4"))),
    "pixels that are not numbers": (H5, put("pixels", np.full((4, 28, 28), np.nan, "f4"))),
    "pixels above one": (H5, put("pixels", np.full((4, 28, 28), 255, "f4"))),
    "a trillion declared pixels": (
        H5,
        made("pixels", shape=(1 << 40, 28, 28), dtype="f4", chunks=(1, 28, 28)),
    ),
    "a chunk that unpacks to gigabytes": (
        H5,
        made(
            "pixels",
            shape=(4, 28, 28),
            maxshape=(None, 28, 28),
            dtype="f4",
            chunks=(500_000, 28, 28),
            compression="gzip",
        ),
    ),
    "a filter that would be loaded": (
        H5,
        made("pixels", shape=(4, 28, 28), dtype="f4", chunks=True, compression=32015, allow_unknown_filter=True),
    ),
}


FEDERATED_REASONS = {
    "labels stored in another file": "in another file",
    "virtual labels": "in another file",
    "a trillion declared pixels": "which no client",
    "a chunk that unpacks to gigabytes": "which no client",
}
"""Where another layer would refuse too: the safeguard meant for the case must be the one that speaks."""


@pytest.mark.parametrize("case", FEDERATED)
def test_a_broken_federated_file_is_refused(tmp_path: Path, case: str) -> None:
    for which in ("train", "test"):
        files.write_federated_h5(tmp_path / f"fed_emnist_{which}.h5", clients=3, classes=62, per_client=(4, 4))

    def load() -> list[object]:
        data = federated_h5.emnist(tmp_path, verify=False)
        return [data.client(index) for index in range(data.clients)]

    message = refused_once_spoiled(tmp_path, load, FEDERATED[case])
    assert FEDERATED_REASONS.get(case, "") in message


def test_a_federated_file_without_its_published_counts_is_refused(tmp_path: Path) -> None:
    for which in ("train", "test"):
        files.write_federated_h5(tmp_path / f"fed_emnist_{which}.h5", clients=3, classes=62)
    assert "3,400" in refused(tmp_path, lambda: federated_h5.emnist(tmp_path), H5)
    (tmp_path / "fed_emnist_test.h5").unlink()
    refused(tmp_path, lambda: federated_h5.emnist(tmp_path, verify=False), "fed_emnist_test.h5")
