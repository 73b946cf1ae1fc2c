"""The real files, in PROGFED_DATA or in `shared/data` beside the project; the tests say so where they are not."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from progfed.data import augment, catalog, cifar, decathlon, federated_h5, inventory

REAL = Path(os.environ.get("PROGFED_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(name: str) -> Path:
    """The root of the real data, when it holds this file or folder."""
    if not (REAL / name).exists():
        pytest.skip(f"the real data are not there: {REAL / name}")
    return REAL


def test_the_real_cifar10_has_all_seven_hashes_and_the_published_counts() -> None:
    root = real("cifar-10-batches-py")
    layout = cifar.CIFAR10
    digests = {**layout.train, **layout.test, **layout.meta}
    assert len(digests) == 7
    for name, digest in digests.items():
        content = (root / layout.folder / name).read_bytes()
        assert f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}" == digest
    assert inventory.check(catalog.find("cifar10"), root).state == "intact"
    data = cifar.cifar10(root, clients=100, partition="dirichlet:0.5")
    counts = torch.stack([data.client(index).targets.bincount(minlength=10) for index in range(100)]).sum(0)
    assert counts.tolist() == [5000] * 10
    test = data.test_examples()
    assert test.targets.bincount().tolist() == [1000] * 10
    pixels = torch.cat([data.client(index).inputs for index in range(100)]).double().div_(255)
    np.testing.assert_allclose(pixels.mean((0, 2, 3)).numpy(), augment.CIFAR10[0], atol=1e-4)
    np.testing.assert_allclose(pixels.std((0, 2, 3)).numpy(), augment.CIFAR10[1], atol=1e-4)


def test_the_real_mnist_by_writer_has_539_writers_and_60_000_images() -> None:
    data = federated_h5.mnist_by_writer(real("fed_mnist_by_writer_train.h5"))
    assert (data.clients, sum(data.sizes)) == (539, 60_000)
    assert (min(data.sizes), max(data.sizes)) == (19, 131)
    held_out = federated_h5.open_source(REAL / "fed_mnist_by_writer_test.h5", classes=10, moments=None)
    assert (len(held_out.clients), sum(held_out.sizes)) == (297, 10_000)
    examples = data.client(538)
    assert examples.inputs.shape[1:] == (1, 28, 28)
    assert examples.number == data.sizes[538]


def test_the_real_hippocampus_has_260_pairs_of_labels_0_1_2() -> None:
    root = real("msd_hippocampus")
    assert len(decathlon.pairs(root / "msd_hippocampus")) == 260
    data = decathlon.hippocampus(root, clients=26)
    assert sum(data.sizes) == 208
    examples = data.client(0)
    assert examples.inputs.shape == (8, 1, 48, 64, 48)
    assert examples.targets.unique().tolist() == [0, 1, 2]
    inside = examples.inputs[examples.inputs != 0]
    assert abs(float(inside.mean())) < 0.05
    assert float(inside.std()) == pytest.approx(1.0, abs=0.05)


def test_the_whole_of_every_hippocampus_label_map_fits_into_the_size_all_volumes_get() -> None:
    root = real("msd_hippocampus")
    for image, label in decathlon.pairs(root / "msd_hippocampus")[:20]:
        _, fitted = decathlon.read_pair(image, label, classes=3, size=(48, 64, 48))
        _, whole = decathlon.read_pair(image, label, classes=3, size=(64, 64, 64))
        assert (fitted > 0).sum() == (whole > 0).sum() > 0
