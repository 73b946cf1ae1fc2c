"""The Medical Segmentation Decathlon (Antonelli et al. 2022) and similar data: folders `images` and `labels`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from progfed.data.augment import volume_training
from progfed.data.integrity import damaged, missing
from progfed.data.partition import iid
from progfed.data.volumes import Size, federated_volumes, fit, hold_out, normalised, read_labels, read_nifti
from progfed.errors import UsageError
from progfed.population import FederatedData

FOLDERS = (("images", "labels"), ("imagesTr", "labelsTr"))
HIPPOCAMPUS = ("msd_hippocampus", "Task04_Hippocampus")


def decathlon(
    root: Path,
    *,
    classes: int = 3,
    size: Size = (48, 64, 48),
    clients: int = 10,
    partition: str = "iid",
    seed: int = 0,
    crop: Size | None = None,
    flips: bool = False,
    test_fraction: float = 0.2,
    name: str = "decathlon",
) -> FederatedData:
    """The cases of a task, shared out to clients at random: inputs `[n, modalities, …]`, integer targets `[n, …]`.

    Each modality is normalised by its own nonzero voxels, then all volumes are cut or padded with zeros to `size`
    around their middle. They are read when a client is asked for.

    Args:
        root: The folder with `images` and `labels`, whose files have the same names.
        classes: The number of labels, background included.
        size: The size of every volume.
        clients: The number of clients.
        partition: `iid`.
        seed: What the test cases and the clients' cases are drawn from.
        crop: The size of the random window that training takes; None: the whole volume.
        flips: Whether training flips volumes along every axis.
        test_fraction: The share of cases that are kept for the test.
        name: What errors and records call the data.
    """
    if partition != "iid":
        raise UsageError(f"there is no partition {partition!r} for volumes without a natural owner: choose iid")
    found = pairs(Path(root))
    train, test = hold_out(len(found), test_fraction, seed=seed)
    return federated_volumes(
        lambda position: read_pair(*found[position], classes=classes, size=size),
        tuple(torch.from_numpy(train)[part] for part in iid(len(train), clients, seed=seed)),
        test,
        classes=classes,
        augment=volume_training(crop, flips=flips),
        name=name,
    )


def hippocampus(
    root: Path,
    *,
    size: Size = (48, 64, 48),
    clients: int = 10,
    partition: str = "iid",
    seed: int = 0,
    test_fraction: float = 0.2,
) -> FederatedData:
    """Task04, the hippocampus in two parts: 260 volumes of about 36 x 50 x 35 voxels, all inside 48 x 64 x 48.

    Its arguments are those of `decathlon`.
    """
    at = next(
        (Path(root) / folder for folder in HIPPOCAMPUS if (Path(root) / folder).is_dir()), Path(root) / HIPPOCAMPUS[0]
    )
    return decathlon(
        at, size=size, clients=clients, partition=partition, seed=seed, test_fraction=test_fraction, name="hippocampus"
    )


def pairs(root: Path) -> list[tuple[Path, Path]]:
    """Images and their labels, sorted by name; every image has labels and all labels have an image."""
    folders = next(((root / i, root / t) for i, t in FOLDERS if (root / i).is_dir()), None)
    if folders is None:
        raise missing(root / "images", "put the task's folders images and labels (or imagesTr and labelsTr) there")
    images, labels = (
        {path.name for path in folder.glob("*.nii*") if not path.name.startswith(".")} for folder in folders
    )
    if lonely := sorted(images ^ labels):
        lost = folders[1] / lonely[0] if lonely[0] in images else folders[0] / lonely[0]
        raise missing(lost, "images and labels come in pairs of the same name; copy it again")
    if not images:
        raise missing(folders[0] / "<case>.nii.gz", "the folder has no volumes; copy the task again")
    return [(folders[0] / name, folders[1] / name) for name in sorted(images)]


def read_pair(image: Path, label: Path, *, classes: int, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """One input `[modalities, …]`, normalised, and its labels, both cut or padded to this size."""
    volume = read_nifti(image)
    modalities = volume[None] if volume.ndim == 3 else np.moveaxis(volume, 3, 0)
    labels = read_labels(label, range(classes), modalities.shape[1:])
    if not (volume != 0).any():
        raise damaged(image, "holds nothing but zeros")
    return np.stack([normalised(one, size) for one in modalities]), fit(labels, size)
