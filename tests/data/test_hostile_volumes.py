"""Broken and hostile NIfTI volumes, in the Decathlon and the BraTS layout."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from progfed.data import brats, decathlon, volumes
from progfed.errors import DataError
from reliability import data_files as files

from .hostile import Case, Spoil, cut, refused_once_spoiled, unzipped


def nifti(name: str, values: np.ndarray) -> Spoil:
    return lambda root: (files.write_nifti(root / name, values), None)[1]


def nifti_bytes(name: str, change: Callable[[bytes], bytes]) -> Spoil:
    return unzipped(lambda root: root / name, change)


def with_nan() -> np.ndarray:
    values = np.ones((12, 16, 10), np.float32)
    values[3, 3, 3] = np.nan
    return values


IMAGE, LABEL = "images/case_000.nii.gz", "labels/case_000.nii.gz"
SHAPE = (12, 16, 10)
HUGE = struct.pack("<8h", 3, 30000, 30000, 30000, 1, 1, 1, 1)
ONE_MORE = struct.pack("<8h", 3, 12, 16, 11, 1, 1, 1, 1)
NEGATIVE = struct.pack("<8h", 3, -5, 16, 10, 1, 1, 1, 1)
VOLUMES: dict[str, Case] = {
    "no label": (LABEL, lambda root: (root / LABEL).unlink()),
    "no image": (IMAGE, lambda root: (root / IMAGE).unlink()),
    "truncated gzip": (IMAGE, cut(lambda root: root / IMAGE)),
    "not gzip": (IMAGE, lambda root: (root / IMAGE).write_text("hello") and None),
    "not NIfTI": (IMAGE, nifti_bytes(IMAGE, lambda content: b"x" * len(content))),
    "nothing inside": (IMAGE, nifti_bytes(IMAGE, lambda _: b"")),
    "cut inside": (IMAGE, nifti_bytes(IMAGE, lambda content: content[:-100])),
    "a header alone": (IMAGE, nifti_bytes(IMAGE, lambda content: content[:348])),
    "a header that declares terabytes": (IMAGE, nifti_bytes(IMAGE, lambda content: content[:40] + HUGE + content[56:])),
    "a negative size": (IMAGE, nifti_bytes(IMAGE, lambda content: content[:40] + NEGATIVE + content[56:])),
    "an unknown type": (IMAGE, nifti_bytes(IMAGE, lambda content: content[:70] + b"\x63\x63" + content[72:])),
    "complex values": (IMAGE, nifti(IMAGE, np.ones(SHAPE, np.complex64))),
    "two axes": (IMAGE, nifti(IMAGE, np.ones((12, 16), np.float32))),
    "a value that is not a number": (IMAGE, nifti(IMAGE, with_nan())),
    "nothing but zeros": (IMAGE, nifti(IMAGE, np.zeros(SHAPE, np.float32))),
    "labels of another shape": (LABEL, nifti(LABEL, np.zeros((5, 5, 5), np.uint8))),
    "a label 7": (LABEL, nifti(LABEL, np.full(SHAPE, 7, np.uint8))),
    "a label 0.5": (LABEL, nifti(LABEL, np.full(SHAPE, 0.5, np.float32))),
    "a label -1": (LABEL, nifti(LABEL, np.full(SHAPE, -1, np.int16))),
    "a header that declares one slice more": (
        IMAGE,
        nifti_bytes(IMAGE, lambda content: content[:40] + ONE_MORE + content[56:]),
    ),
    "a bomb whose header fits": (IMAGE, nifti(IMAGE, np.full((500, 500, 3), 1, np.uint8))),
    "labels of another shape that are a bomb": (LABEL, nifti(LABEL, np.zeros((500, 500, 3), np.uint8))),
    "a bomb": (IMAGE, nifti_bytes(IMAGE, lambda content: content + bytes(8 << 20))),
}


VOLUMES_REASONS = {
    "a header that declares terabytes": "more than such a file can have",
    "a header that declares one slice more": "it is cut short",
    "a bomb whose header fits": "500 x 500 x 3 values, more than such a file can have",
    "labels of another shape that are a bomb": "has shape (500, 500, 3) where its image has (12, 16, 10)",
    "a bomb": "decompresses to more than",
}
"""Where another layer would refuse too: the safeguard meant for the case must be the one that speaks."""


@pytest.mark.parametrize("case", VOLUMES)
def test_a_broken_volume_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "_CAP", 1 << 20)
    monkeypatch.setattr(volumes, "_BEYOND", 1 << 20)
    monkeypatch.setattr(volumes, "_SMALL", 1 << 17)
    files.write_decathlon(tmp_path, cases=3, sizes=(SHAPE,))

    def load() -> list[object]:
        data = decathlon.decathlon(tmp_path, clients=1, size=SHAPE)
        return [data.client(0), data.test_examples()]

    message = refused_once_spoiled(tmp_path, load, VOLUMES[case])
    assert VOLUMES_REASONS.get(case, "") in message


def test_labels_of_another_shape_are_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_decathlon(tmp_path, cases=3, sizes=(SHAPE,))
    opened: list[Path] = []
    whole = volumes.read_file
    monkeypatch.setattr(volumes, "read_file", lambda path, **caps: (opened.append(path), whole(path, **caps))[1])
    with pytest.raises(DataError, match="has shape"):
        volumes.read_labels(tmp_path / LABEL, (0, 1, 2), (12, 16, 11))
    assert opened == []


def test_a_volume_that_is_cut_first_is_normalised_to_the_same_bits() -> None:
    draw = np.random.default_rng(3)
    volume = (draw.normal(size=(9, 8, 7)) * (draw.random((9, 8, 7)) > 0.3) * 1000).astype(np.int16)
    for size, centre in (((5, 10, 7), None), ((4, 4, 4), (1, 7, 3))):
        assert (
            volumes.normalised(volume, size, centre).tobytes()
            == volumes.fit(volumes.normalised(volume), size, centre).tobytes()
        )


def case_file(part: str) -> Callable[[Path], Path]:
    return lambda root: next(root.rglob(f"*CBICA_000_1_{part}.nii.gz"))


BRATS: dict[str, Case] = {
    "no folder": (
        "MICCAI_BraTS_2018_Data_Training",
        lambda root: (root / brats.FOLDERS[0]).rename(root / "other") and None,
    ),
    "a modality missing": ("_t1ce.nii.gz", lambda root: case_file("t1ce")(root).unlink()),
    "a label 3": (
        "_seg.nii.gz",
        lambda root: nifti(str(case_file("seg")(root)), np.full((8, 8, 8), 3, np.uint8))(root),
    ),
    "a modality of another shape": (
        "_t2.nii.gz",
        lambda root: nifti(str(case_file("t2")(root)), np.ones((8, 8, 7), np.int16))(root),
    ),
    "a truncated segmentation": ("_seg.nii.gz", cut(case_file("seg"))),
}


@pytest.mark.parametrize("case", BRATS)
def test_a_broken_brats_case_is_refused(tmp_path: Path, case: str) -> None:
    files.write_brats(tmp_path, cases=4, size=(8, 8, 8))

    def load() -> list[object]:
        data = brats.brats(tmp_path, clients=1, size=(8, 8, 8))
        return [data.client(0), data.test_examples()]

    refused_once_spoiled(tmp_path, load, BRATS[case])
