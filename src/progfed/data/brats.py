"""BraTS 2018, segmentation of brain tumours: `{HGG,LGG}/<case>/<case>_{flair,t1,t1ce,t2,seg}.nii.gz` (Menze et al.)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from progfed.data.augment import volume_training
from progfed.data.integrity import damaged, missing
from progfed.data.partition import Parts, iid, natural
from progfed.data.volumes import Size, centre_of, federated_volumes, fit, hold_out, normalised, read_labels, read_nifti
from progfed.errors import UsageError
from progfed.population import FederatedData

FOLDERS = ("MICCAI_BraTS_2018_Data_Training", "brats2018", ".")
GRADES = ("HGG", "LGG")
MODALITIES = ("flair", "t1", "t1ce", "t2")
LABELS = (0, 1, 2, 4)
REGIONS = ((1, 2, 4), (1, 4), (4,))
"""The labels that make up whole tumour, tumour core and enhancing tumour."""

_NEEDED = "BraTS needs registration with its organisers; put its folders HGG and LGG there"


def brats(
    root: Path,
    *,
    clients: int = 10,
    partition: str = "iid",
    seed: int = 0,
    size: Size = (128, 128, 128),
    crop: Size | None = None,
    flips: bool = True,
    test_fraction: float = 0.2,
) -> FederatedData:
    """BraTS 2018 over clients: inputs `[n, 4, …]`, targets `[n, 3, …]` of 0.0 and 1.0: whole tumour, core, enhancing.

    Volumes are cut to `size` around the brain, and each is normalised by its own nonzero voxels. They are read when a
    client is asked for: a case of 128 cubed takes 59 MB.

    Args:
        root: The folder of data.
        clients: The number of clients.
        partition: `iid`, or `institution`: one client for each institution, which a case's name tells, whatever
            `clients` says.
        seed: What the test cases and the clients' cases are drawn from.
        size: The size of every volume.
        crop: The size of the random window that training takes; None: the whole volume.
        flips: Whether training flips volumes along every axis.
        test_fraction: The share of cases that are kept for the test.
    """
    found = cases(Path(root))
    train, test = hold_out(len(found), test_fraction, seed=seed)
    chosen = [found[index] for index in train]
    return federated_volumes(
        lambda position: read_case(found[position], size=size),
        tuple(torch.from_numpy(train)[part] for part in _parts(chosen, clients, partition, seed)),
        test,
        classes=None,
        augment=volume_training(crop, flips=flips),
        name="brats2018",
    )


def cases(root: Path) -> list[Path]:
    """The folders of all cases, sorted by name; each is checked to have its five files."""
    at = next((root / folder for folder in FOLDERS if any((root / folder / grade).is_dir() for grade in GRADES)), None)
    if at is None:
        raise missing(root / FOLDERS[0], _NEEDED)
    found = sorted(path for grade in GRADES for path in (at / grade).glob("*") if path.is_dir())
    if not found:
        raise missing(at / "HGG" / "<case>", _NEEDED)
    for case in found:
        for part in (*MODALITIES, "seg"):
            if not _file(case, part).is_file():
                raise missing(_file(case, part), "every case has four modalities and a segmentation; copy it again")
    return found


def read_case(case: Path, *, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """The four modalities, normalised, and the three regions of one case, cut to `size` around the brain."""
    volumes = [read_nifti(_file(case, modality)) for modality in MODALITIES]
    for modality, volume in zip(MODALITIES, volumes, strict=True):
        if volume.ndim != 3 or volume.shape != volumes[0].shape:
            raise damaged(_file(case, modality), f"has shape {volume.shape} where flair has {volumes[0].shape}")
    labels = read_labels(_file(case, "seg"), LABELS, volumes[0].shape)
    centre = centre_of(np.any([volume != 0 for volume in volumes], axis=0))
    inputs = np.stack([normalised(volume, size, centre) for volume in volumes])
    regions = np.stack([np.isin(labels, region) for region in REGIONS])
    return inputs, fit(regions, size, centre).astype(np.float32)


def institution(case: Path) -> str:
    """Where a case was scanned: `Brats18_TCIA01_123_1` -> `TCIA01`."""
    parts = case.name.split("_")
    return parts[1] if len(parts) > 2 else case.name


def _parts(chosen: list[Path], clients: int, partition: str, seed: int) -> Parts:
    """The cases of each client."""
    if partition == "iid":
        return iid(len(chosen), clients, seed=seed)
    if partition == "institution":
        return natural([institution(case) for case in chosen])
    raise UsageError(f"there is no partition {partition!r} for BraTS: choose iid or institution")


def _file(case: Path, part: str) -> Path:
    """The path of one file of a case, such as its `flair`."""
    return case / f"{case.name}_{part}.nii.gz"
