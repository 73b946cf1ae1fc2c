"""The data sets by name: what each needs, where its files go, where to get them, and on which terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from progfed.data import brats, cifar, decathlon, federated_h5, idx
from progfed.data.integrity import MEGABYTE
from progfed.data.inventory import DataSet, Download, File
from progfed.errors import UsageError
from progfed.population import FederatedData


def find(name: str) -> DataSet:
    """The data set of this name; an unknown name is an error that lists all."""
    known = {data.name: data for data in CATALOG}
    if name not in known:
        raise UsageError(f"there is no data set {name!r}: choose one of {', '.join(known)}")
    return known[name]


def load(
    name: str, root: Path, *, clients: int | None = None, partition: str | None = None, seed: int | None = None
) -> FederatedData:
    """A data set by its name.

    Args:
        name: A name that `progfed data list` shows.
        root: The folder of data.
        clients: The number of clients; None: the data set's own default.
        partition: How examples are shared out; None: the data set's own default.
        seed: What the partition is drawn from; None: the data set's own default.
    """
    data = find(name)
    given = {"clients": clients, "partition": partition, "seed": seed}
    options = {key: value for key, value in given.items() if value is not None}
    if data.natural and options.keys() & {"clients", "partition"}:
        raise UsageError(f"{name} has the clients it came with: leave out the number of clients and the partition")
    return data.load(root, **options)


def _population(loader: Callable[[Path], FederatedData]) -> Callable[[Path], str]:
    """A check that reads every example, and returns a line that says how many there are."""

    def inspect(root: Path) -> str:
        data = loader(root)
        for index in range(data.clients):
            data.client(index)
        return f"{data.clients:,} clients, {sum(data.sizes):,} examples, {data.test_examples().number:,} for test"

    return inspect


def _volumes(kind: str, read: Callable[[Path], int]) -> Callable[[Path], str]:
    return lambda root: f"{read(root)} {kind}"


def _read_hippocampus(root: Path) -> int:
    folder = next(root / name for name in decathlon.HIPPOCAMPUS if (root / name).exists())
    found = decathlon.pairs(folder)
    for image, label in found:
        decathlon.read_pair(image, label, classes=3, size=(48, 64, 48))
    return len(found)


def _read_brats(root: Path) -> int:
    found = brats.cases(root)
    for case in found:
        brats.read_case(case, size=(128, 128, 128))
    return len(found)


def _cifar_forms(layout: cifar.Layout) -> tuple[tuple[File, ...], ...]:
    digests = {**layout.train, **layout.test, **layout.meta}
    folder = tuple(File(f"{layout.folder}/{name}", digest) for name, digest in digests.items())
    return folder, (File(layout.archive, layout.archive_digest),)


def _idx_forms(layout: idx.Layout) -> tuple[tuple[File, ...], ...]:
    zipped = tuple(File(f"{layout.folder}/{name}.gz", digest, unzip=True) for name, digest in layout.digests.items())
    return zipped, tuple(File(f"{layout.folder}/{name}", digest) for name, digest in layout.digests.items())


def _idx_downloads(layout: idx.Layout, address: str) -> tuple[Download, ...]:
    return tuple(Download(f"{address}/{Path(file.path).name}", file) for file in _idx_forms(layout)[0])


def _h5(stem: str) -> tuple[tuple[File, ...], ...]:
    return ((File(f"{stem}_train.h5"), File(f"{stem}_test.h5")),)


def _h5_download(stem: str, digest: str) -> tuple[Download, ...]:
    names = f"{stem}_train.h5", f"{stem}_test.h5"
    address = f"https://storage.googleapis.com/tff-datasets-public/{stem}.tar.bz2"
    return (Download(address, File(f"{stem}.tar.bz2", digest), {name: name for name in names}, cap=8192 * MEGABYTE),)


_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"
_WRITERS = "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets"

CATALOG: tuple[DataSet, ...] = (
    DataSet(
        name="cifar10",
        title="CIFAR-10: 60,000 colour images of 32 x 32, 10 classes",
        terms="research use; cite Krizhevsky 2009",
        size="170 MB",
        forms=_cifar_forms(cifar.CIFAR10),
        load=cifar.cifar10,
        homepage=f"{_KRIZHEVSKY}/cifar.html",
        downloads=(Download(f"{_KRIZHEVSKY}/{cifar.CIFAR10.archive}", _cifar_forms(cifar.CIFAR10)[1][0]),),
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100: 60,000 colour images of 32 x 32, 100 classes in 20 groups",
        terms="research use; cite Krizhevsky 2009",
        size="170 MB",
        forms=_cifar_forms(cifar.CIFAR100),
        load=cifar.cifar100,
        homepage=f"{_KRIZHEVSKY}/cifar.html",
        downloads=(Download(f"{_KRIZHEVSKY}/{cifar.CIFAR100.archive}", _cifar_forms(cifar.CIFAR100)[1][0]),),
    ),
    DataSet(
        name="fed-cifar100",
        title="Federated CIFAR-100: 500 clients of 100 images by Pachinko allocation",
        terms="research use; cite Krizhevsky 2009 and Reddi et al. 2021",
        size="150 MB",
        forms=_h5("fed_cifar100"),
        load=federated_h5.fed_cifar100,
        homepage=f"{_WRITERS}/cifar100",
        downloads=_h5_download(
            "fed_cifar100", "sha256:e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de"
        ),
        inspect=_population(federated_h5.fed_cifar100),
        natural=True,
    ),
    DataSet(
        name="emnist",
        title="Federated EMNIST: characters of 3,400 writers, 62 classes",
        terms="public domain (NIST); cite Cohen et al. 2017 and Caldas et al. 2018",
        size="170 MB",
        forms=_h5("fed_emnist"),
        load=federated_h5.emnist,
        homepage=f"{_WRITERS}/emnist",
        downloads=_h5_download("fed_emnist", "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"),
        inspect=_population(federated_h5.emnist),
        natural=True,
    ),
    DataSet(
        name="emnist-digits",
        title="Federated EMNIST, digits only: 3,383 writers, 10 classes",
        terms="public domain (NIST); cite Cohen et al. 2017 and Caldas et al. 2018",
        size="80 MB",
        forms=_h5("fed_emnist_digitsonly") + _h5("fed_emnist"),
        load=lambda root, **options: federated_h5.emnist(root, digits=True, **options),
        homepage=f"{_WRITERS}/emnist",
        downloads=_h5_download(
            "fed_emnist_digitsonly", "sha256:55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b"
        ),
        inspect=_population(lambda root: federated_h5.emnist(root, digits=True)),
        natural=True,
    ),
    DataSet(
        name="mnist",
        title="MNIST: 70,000 digits of 28 x 28",
        terms="CC BY-SA 3.0; cite LeCun et al. 1998",
        size="12 MB",
        forms=_idx_forms(idx.MNIST),
        load=idx.mnist,
        homepage="http://yann.lecun.com/exdb/mnist",
        downloads=_idx_downloads(idx.MNIST, "https://ossci-datasets.s3.amazonaws.com/mnist"),
    ),
    DataSet(
        name="fashion-mnist",
        title="Fashion-MNIST: 70,000 articles of clothing of 28 x 28, 10 classes",
        terms="MIT licence; cite Xiao et al. 2017",
        size="31 MB",
        forms=_idx_forms(idx.FASHION_MNIST),
        load=idx.fashion_mnist,
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        downloads=_idx_downloads(idx.FASHION_MNIST, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
    ),
    DataSet(
        name="mnist-by-writer",
        title="MNIST by its real writers: 539 clients, 297 other writers for test",
        terms="MNIST CC BY-SA 3.0; writer ids of QMNIST (BSD)",
        size="40 MB",
        forms=_h5("fed_mnist_by_writer"),
        load=federated_h5.mnist_by_writer,
        homepage="https://github.com/facebookresearch/qmnist",
        inspect=_population(federated_h5.mnist_by_writer),
        natural=True,
    ),
    DataSet(
        name="hippocampus",
        title="Medical Segmentation Decathlon, Task04: 260 volumes, 3 labels",
        terms="CC BY-SA 4.0; cite Antonelli et al. 2022",
        size="28 MB",
        forms=tuple((File(folder),) for folder in decathlon.HIPPOCAMPUS),
        load=decathlon.hippocampus,
        homepage="http://medicaldecathlon.com",
        downloads=(
            Download(
                "https://msd-for-monai.s3-us-west-2.amazonaws.com/Task04_Hippocampus.tar",
                File("Task04_Hippocampus.tar", "md5:9d24dba78a72977dbd1d2e110310f31b"),
                {
                    "Task04_Hippocampus/imagesTr/*": "Task04_Hippocampus/imagesTr",
                    "Task04_Hippocampus/labelsTr/*": "Task04_Hippocampus/labelsTr",
                },
            ),
        ),
        inspect=_volumes("pairs", _read_hippocampus),
    ),
    DataSet(
        name="brats2018",
        title="BraTS 2018: brain tumours, 285 cases, 4 modalities, 3 regions",
        terms="registration with the organisers; cite Menze et al. 2015 and Bakas et al. 2017, 2018",
        size="2.4 GB",
        forms=((File(brats.FOLDERS[0]),), (File(brats.FOLDERS[1]),), (File("HGG"), File("LGG"))),
        load=brats.brats,
        homepage="https://www.med.upenn.edu/sbia/brats2018",
        inspect=_volumes("cases", _read_brats),
    ),
)
