"""Every loader from files in the exact layouts, against an independent reading of the same files."""

import multiprocessing
import pickle
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from progfed import rng
from progfed.data import augment, brats, cifar, decathlon, federated_h5, idx
from progfed.data.volumes import centre_of, fit, normalised
from progfed.errors import StorageError, UsageError
from progfed.models.convnet import convnet_cifar
from progfed.population import FederatedData
from progfed.runs.directory import refuse_other
from progfed.runs.identity import describe
from reliability import data_files as files
from tiny import tiny_experiment

LAYOUTS = pytest.mark.parametrize("layout", [cifar.CIFAR10, cifar.CIFAR100], ids=lambda layout: layout.name)


def everything(data: FederatedData) -> list[tuple[int, bytes]]:
    """All examples of all clients as a sorted list: what a partition must not change."""
    clients = [data.client(index) for index in range(data.clients)]
    return sorted((int(t), i.numpy().tobytes()) for c in clients for i, t in zip(c.inputs, c.targets, strict=True))


@LAYOUTS
def test_the_cifar_writer_makes_pickles_that_plain_python_and_numpy_read(tmp_path: Path, layout: cifar.Layout) -> None:
    folder = files.write_cifar(tmp_path, layout, number=7)
    batch = pickle.loads((folder / next(iter(layout.train))).read_bytes(), encoding="bytes")
    assert batch[b"data"].shape == (7, 3072)
    assert batch[b"data"].dtype == np.uint8
    assert len(batch[layout.labels.encode()]) == 7


@LAYOUTS
@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_cifar_clients_hold_the_bytes_of_the_files_each_once(
    tmp_path: Path, layout: cifar.Layout, archive: bool
) -> None:
    files.write_cifar(tmp_path, layout, number=20, archive=archive)
    files.write_cifar(tmp_path / "plain", layout, number=20)
    load = cifar.cifar10 if layout is cifar.CIFAR10 else cifar.cifar100
    data = load(tmp_path, clients=4, verify=False)
    expected = []
    for name in layout.train:
        batch = pickle.loads((tmp_path / "plain" / layout.folder / name).read_bytes(), encoding="bytes")
        expected += [(t, i.tobytes()) for i, t in zip(batch[b"data"], batch[layout.labels.encode()], strict=True)]
    assert everything(data) == sorted(expected)
    assert data.classes == layout.classes
    assert data.client(0).inputs.dtype == torch.uint8
    assert data.client(0).targets.dtype == torch.int64
    test = pickle.loads((tmp_path / "plain" / layout.folder / next(iter(layout.test))).read_bytes(), encoding="bytes")
    moments = augment.CIFAR10 if layout is cifar.CIFAR10 else augment.CIFAR100
    mean, std = (np.reshape(values, (1, 3, 1, 1)) for values in moments)
    np.testing.assert_allclose(
        data.test_examples().inputs.numpy(), (test[b"data"].reshape(-1, 3, 32, 32) / 255 - mean) / std, atol=1e-5
    )


def test_a_model_learns_from_cifar_files_through_the_augmentation(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=60)
    data = cifar.cifar10(tmp_path, clients=3, verify=False)
    assert data.augment is not None
    module = convnet_cifar().at(4, seed=1)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = []
    for step in range(30):
        batch = data.augment(data.client(step % 3), rng.generator(0, step))
        loss = F.cross_entropy(module(batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


@pytest.mark.parametrize("fine", ["iid", "dirichlet:0.5", "shards:2", "pachinko"])
def test_cifar100_offers_every_partition_and_cifar10_all_but_the_coarse_one(tmp_path: Path, fine: str) -> None:
    files.write_cifar(tmp_path, cifar.CIFAR100, number=40)
    files.write_cifar(tmp_path, cifar.CIFAR10, number=40)
    assert sum(cifar.cifar100(tmp_path, clients=5, partition=fine, verify=False).sizes) == 40
    if fine == "pachinko":
        with pytest.raises(UsageError, match="no partition 'pachinko'"):
            cifar.cifar10(tmp_path, clients=5, partition=fine, verify=False)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("load", [idx.mnist, idx.fashion_mnist])
def test_idx_files_load_compressed_or_not(tmp_path: Path, compressed: bool, load) -> None:
    layout = idx.MNIST if load is idx.mnist else idx.FASHION_MNIST
    files.write_idx(tmp_path, layout, number=30, compressed=compressed)
    data = load(tmp_path, clients=4, partition="dirichlet:0.5", verify=False)
    assert sum(data.sizes) == 30
    assert data.test_examples().inputs.shape == (15, 1, 28, 28)
    whole = idx.read_idx(idx.locate(tmp_path, layout, "train-images-idx3-ubyte"), axes=3)
    pixels = torch.cat([data.client(index).inputs for index in range(4)]) * layout.moments[1][0] + layout.moments[0][0]
    assert float(pixels.mean()) == pytest.approx(float(whole.float().mean()) / 255, abs=1e-5)


def fed_root(tmp_path: Path, stem: str, **options) -> Path:
    for which, clients in (("train", 6), ("test", 3)):
        files.write_federated_h5(tmp_path / f"{stem}_{which}.h5", clients=clients, **options)
    return tmp_path


def test_federated_hdf5_gives_each_client_its_own_group(tmp_path: Path) -> None:
    data = federated_h5.emnist(fed_root(tmp_path, "fed_emnist", classes=62), invert=False, verify=False)
    with h5py.File(tmp_path / "fed_emnist_train.h5") as file:
        assert data.clients == len(file["examples"]) == 6
        for index, name in enumerate(sorted(file["examples"])):
            group = file["examples"][name]
            examples = data.client(index)
            np.testing.assert_array_equal(examples.targets.numpy(), group["label"][()])
            expected = (group["pixels"][()][:, None] - 0.1307) / 0.3081
            np.testing.assert_allclose(examples.inputs.numpy(), expected, atol=1e-5)
    inverted = federated_h5.emnist(tmp_path, invert=True, verify=False).client(0).inputs
    plain = data.client(0).inputs * 0.3081 + 0.1307
    torch.testing.assert_close(inverted, (1 - plain - 0.1307) / 0.3081, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "stem"),
    [(federated_h5.emnist, "fed_emnist"), (federated_h5.mnist_by_writer, "fed_mnist_by_writer")],
    ids=["emnist", "mnist-by-writer"],
)
def test_ink_is_1_by_default_and_that_is_part_of_the_identity(tmp_path: Path, make, stem: str) -> None:
    root = fed_root(tmp_path, stem, classes=10)
    now, before = make(root, verify=False), make(root, invert=False, verify=False)
    paper = before.client(0).inputs * 0.3081 + 0.1307
    torch.testing.assert_close(now.client(0).inputs, (1 - paper - 0.1307) / 0.3081, atol=1e-5, rtol=1e-5)
    for population in (now, before):
        assert torch.equal(population.client(0).targets, now.client(0).targets)
    assert describe(now) != describe(before)
    # a run that was begun when the default was paper = 1 is another experiment
    assert describe(make) != f"{make.__module__}:{make.__qualname__}"
    described = describe(tiny_experiment(data=make))
    earlier = described | {"data": f"{make.__module__}:{make.__qualname__}"}
    with pytest.raises(StorageError, match=r"holds another experiment: data '.*' there, '.* with ink 1' now"):
        refuse_other(earlier, described, tmp_path)


def test_labels_of_shape_n_by_1_are_read_like_labels_of_shape_n(tmp_path: Path) -> None:
    root = fed_root(tmp_path, "fed_emnist", classes=62)
    before = federated_h5.emnist(root, verify=False).client(2).targets
    with h5py.File(root / "fed_emnist_train.h5", "r+") as file:
        for group in file["examples"].values():
            labels = group["label"][()]
            del group["label"]
            group["label"] = labels[:, None]
    assert torch.equal(federated_h5.emnist(root, verify=False).client(2).targets, before)


def test_digits_are_picked_from_the_full_file_unless_their_own_is_there(tmp_path: Path) -> None:
    root = fed_root(tmp_path, "fed_emnist", classes=62, per_client=(20, 40))
    picked = federated_h5.emnist(root, digits=True)
    with h5py.File(root / "fed_emnist_train.h5") as file:
        counts = [int((group["label"][()] < 10).sum()) for _, group in sorted(file["examples"].items())]
    assert list(picked.sizes) == [count for count in counts if count]
    assert all(int(picked.client(index).targets.max()) < 10 for index in range(picked.clients))
    assert int(picked.test_examples().targets.max()) < 10
    own = federated_h5.emnist(
        fed_root(tmp_path, "fed_emnist_digitsonly", classes=10, seed=7), digits=True, verify=False
    )
    assert list(own.sizes) != list(picked.sizes)
    assert own.classes == 10


def test_federated_cifar100_keeps_bytes_for_training_and_normalises_the_test(tmp_path: Path) -> None:
    data = federated_h5.fed_cifar100(fed_root(tmp_path, "fed_cifar100", classes=100, colour=True), verify=False)
    examples = data.client(0)
    assert examples.inputs.dtype == torch.uint8
    assert data.augment is not None
    assert data.augment(examples, rng.generator(0)).inputs.shape[1:] == (3, 24, 24)
    test = data.test_examples()
    assert test.inputs.dtype == torch.float32
    with h5py.File(tmp_path / "fed_cifar100_train.h5") as file:
        first = file["examples"][min(file["examples"])]["image"][()]
    np.testing.assert_array_equal(examples.inputs.numpy(), first.transpose(0, 3, 1, 2))


def _sum_in_child(queue, data: FederatedData) -> None:
    queue.put([float(data.client(index).inputs.sum()) for index in range(data.clients)])


def test_forked_workers_read_the_same_clients_as_the_parent(tmp_path: Path) -> None:
    data = federated_h5.emnist(fed_root(tmp_path, "fed_emnist", classes=62), verify=False)
    here = [float(data.client(index).inputs.sum()) for index in range(data.clients)]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_sum_in_child, args=(queue, data)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert results == [here, here]


def test_brats_gives_four_modalities_and_three_overlapping_regions(tmp_path: Path) -> None:
    files.write_brats(tmp_path, cases=6, size=(24, 20, 16))
    data = brats.brats(tmp_path, clients=2, size=(16, 16, 16), test_fraction=0.3)
    assert sum(data.sizes) == 4
    examples = data.client(0)
    assert examples.inputs.shape[1:] == (4, 16, 16, 16)
    assert examples.targets.shape[1:] == (3, 16, 16, 16)
    assert examples.targets.unique().tolist() == [0.0, 1.0]
    case = brats.cases(tmp_path)[0]
    labels = np.asanyarray(nibabel.load(case / f"{case.name}_seg.nii.gz").dataobj)
    inputs, regions = brats.read_case(case, size=labels.shape)
    np.testing.assert_array_equal(regions[0], np.isin(labels, (1, 2, 4)))
    np.testing.assert_array_equal(regions[1], (labels == 1) | (labels == 4))
    np.testing.assert_array_equal(regions[2], labels == 4)
    flair = np.asanyarray(nibabel.load(case / f"{case.name}_flair.nii.gz").dataobj).astype(float)
    brain = flair[flair != 0]
    np.testing.assert_allclose(inputs[0][flair != 0], (brain - brain.mean()) / brain.std(), atol=1e-5)
    assert not inputs[0][flair == 0].any()


def test_brats_by_institution_has_one_client_for_each(tmp_path: Path) -> None:
    files.write_brats(tmp_path, cases=9, size=(8, 8, 8))
    data = brats.brats(tmp_path, partition="institution", size=(8, 8, 8), test_fraction=0.12)
    assert data.clients == 3
    assert sum(data.sizes) == 8
    with pytest.raises(UsageError, match="iid or institution"):
        brats.brats(tmp_path, partition="dirichlet:1")


@pytest.mark.parametrize("folders", decathlon.FOLDERS)
def test_decathlon_pairs_of_any_size_come_out_at_one_size(tmp_path: Path, folders: tuple[str, str]) -> None:
    files.write_decathlon(tmp_path, cases=6)
    for old, new in zip(("images", "labels"), folders, strict=True):
        (tmp_path / old).rename(tmp_path / new)
    (tmp_path / folders[0] / "._case_000.nii.gz").write_bytes(b"resource fork")
    data = decathlon.decathlon(tmp_path, clients=2, size=(16, 16, 16))
    examples = data.client(1)
    assert examples.inputs.shape[1:] == (1, 16, 16, 16)
    assert examples.targets.shape[1:] == (16, 16, 16)
    assert examples.targets.dtype == torch.int64
    assert sum(data.sizes) + data.test_examples().number == 6
    assert float(examples.inputs.abs().max()) < 10  # intensities of up to a million came in


def test_four_dimensional_volumes_become_channels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(1, 2, (6, 5, 4, 3)).astype(np.float32)
    image = files.write_nifti(tmp_path / "images" / "a.nii.gz", values)
    label = files.write_nifti(tmp_path / "labels" / "a.nii.gz", np.ones((6, 5, 4), np.uint8))
    inputs, _ = decathlon.read_pair(image, label, classes=2, size=(6, 5, 4))
    np.testing.assert_allclose(inputs[2], (values[..., 2] - values[..., 2].mean()) / values[..., 2].std(), atol=1e-4)


def test_fitting_cuts_and_pads_around_the_centre_without_losing_what_would_fit() -> None:
    line = np.arange(1, 8).reshape(1, 7, 1, 1)
    assert fit(line, (3, 1, 1)).flatten().tolist() == [3, 4, 5]
    assert fit(line, (3, 1, 1), (6, 0, 0)).flatten().tolist() == [5, 6, 7]
    assert fit(line, (9, 1, 1)).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert fit(line, (9, 1, 1), (0, 0, 0)).flatten().tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_normalising_ignores_the_background_and_survives_flat_volumes() -> None:
    volume = np.zeros((4, 4, 4))
    assert not normalised(volume).any()
    volume[1, 1, :] = 5.0
    assert not normalised(volume).any()  # no deviation: only centred
    volume[1, 1, 0] = 9.0
    assert normalised(volume)[volume != 0].std() == pytest.approx(1.0, abs=1e-6)
    assert centre_of(volume != 0) == (1, 1, 2)


def test_a_unet_like_layer_trains_on_volumes_from_files(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path, cases=5)
    examples = decathlon.decathlon(tmp_path, clients=1, size=(12, 12, 12)).client(0)
    layer = nn.Conv3d(1, 3, 3, padding=1)
    loss = F.cross_entropy(layer(examples.inputs), examples.targets)
    loss.backward()
    assert layer.weight.grad is not None
    assert bool(torch.isfinite(layer.weight.grad).all())
