"""Broken and hostile files: each gives one clear DataError that names the file, runs nothing, and writes nothing."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from progfed.data import archives, brats, cifar, decathlon, federated_h5, idx, volumes
from progfed.data import synthetic_files as files
from progfed.data.pickles import load_arrays
from progfed.errors import DataError

Case = tuple[str, Callable[[Path], None]]
"""What the message must name, and what is done to good files."""


def refused(root: Path, load: Callable[[], object], named: str) -> str:
    """The message of the DataError; checked to be one line that names the file, with no file made, changed or lost."""
    before = snapshot(root)
    with pytest.raises(DataError) as caught:
        load()
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 600
    assert snapshot(root) == before
    assert not (root / "EXECUTED").exists()
    return message


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    status = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (one.st_size, one.st_mtime_ns) for path, one in status.items()}


class Attack:
    """Pickles to a call: were it run, a file EXECUTED would appear."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.arguments


def batch(root: Path) -> Path:
    return root / "cifar-10-batches-py" / "data_batch_2"


def good_batch(**changes: object) -> bytes:
    value = {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 3]}
    value.update({key.encode(): item for key, item in changes.items()})
    return files.pickled(value)


def written(content: bytes) -> Callable[[Path], None]:
    return lambda root: (batch(root).write_bytes(content), None)[1]


def cut(path: Callable[[Path], Path], share: float = 0.6) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        content = path(root).read_bytes()
        path(root).write_bytes(content[: int(len(content) * share)])

    return run


def attack(protocol: int, function: str = "system") -> Callable[[Path], None]:
    def run(root: Path) -> None:
        call = {
            "system": Attack(os.system, f"touch {root}/EXECUTED"),
            "eval": Attack(eval, f"open({str(root / 'EXECUTED')!r}, 'w')"),
            "open": Attack(open, str(root / "EXECUTED"), "w"),
        }[function]
        batch(root).write_bytes(pickle.dumps({b"data": call}, protocol))

    return run


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        batch(root).unlink()
        make(batch(root))

    return run


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(201 << 20)


NAME = "data_batch_2"
PICKLES: dict[str, Case] = {
    "missing": (NAME, lambda root: batch(root).unlink()),
    "truncated": (NAME, cut(batch)),
    "empty": (NAME, written(b"")),
    "text": (NAME, written(b"<html>404</html>")),
    "a folder in its place": (NAME, replaced_by(lambda path: path.mkdir())),
    "a pipe in its place": (NAME, replaced_by(os.mkfifo)),
    "a dangling link in its place": (NAME, replaced_by(lambda path: path.symlink_to("nowhere"))),
    "too large": (NAME, replaced_by(sparse)),
    "os.system, protocol 2": (NAME, attack(2)),
    "os.system, protocol 4": (NAME, attack(4)),
    "os.system, protocol 0": (NAME, attack(0)),
    "eval": (NAME, attack(2, "eval")),
    "open": (NAME, attack(2, "open")),
    "an INST opcode": (NAME, written(b"(S'true'\nios\nsystem\n.")),
    "an OBJ opcode": (NAME, written(b"(cos\nsystem\nS'true'\no.")),
    "a persistent id": (NAME, written(b"\x80\x02Pevil\n.")),
    "an extension code": (NAME, written(b"\x80\x02\x82\x01.")),
    "a memo index of four billion": (NAME, written(b"\x80\x02}r\xff\xff\xff\xff.")),
    "a string longer than the file": (NAME, written(b"\x80\x02T\xff\xff\xff\x7f.")),
    "a list": (NAME, written(files.pickled([1, 2]))),
    "a number as a key's function": (NAME, written(b"\x80\x02K\x01K\x01\x85R.")),
    "numpy's own function with a huge shape": (
        NAME,
        written(
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87Rs."
        ),
    ),
    "an array whose shape lies": (
        NAME,
        lambda root: written(good_batch().replace(b"J\x04\0\0\0J\0\x0c", b"J\x05\0\0\0J\0\x0c"))(root),
    ),
    "an array of objects": (NAME, lambda root: written(good_batch().replace(b"T\x02\0\0\0u1", b"T\x02\0\0\0O8"))(root)),
    "no images": (NAME, written(good_batch(data=[1, 2, 3, 4]))),
    "images of another width": (NAME, written(good_batch(data=np.zeros((4, 3000), np.uint8)))),
    "a label too many": (NAME, written(good_batch(labels=[0, 1, 2, 3, 4]))),
    "a label that is text": (NAME, written(good_batch(labels=[0, 1, 2, b"3"]))),
    "a label 10": (NAME, written(good_batch(labels=[0, 1, 2, 10]))),
    "a label -1": (NAME, written(good_batch(labels=[0, 1, 2, -1]))),
}


@pytest.mark.parametrize("case", PICKLES)
def test_a_broken_cifar_batch_is_refused(tmp_path: Path, case: str) -> None:
    named, spoil = PICKLES[case]
    files.write_cifar(tmp_path, number=4)
    spoil(tmp_path)
    refused(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2, verify=False), named)


def test_the_cases_start_from_files_that_load(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=4)
    written(good_batch())(tmp_path)
    assert sum(cifar.cifar10(tmp_path, clients=2, verify=False).sizes) == 20


def test_nothing_is_unpickled_before_the_hash_matches(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=4)
    message = refused(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2), "data_batch_1")
    assert "not the published file" in message


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", ["system", "eval", "open"])
def test_even_without_the_scan_of_opcodes_no_foreign_function_is_found(
    tmp_path: Path, protocol: int, function: str
) -> None:
    files.write_cifar(tmp_path, number=4)
    attack(protocol, function)(tmp_path)
    content = batch(tmp_path).read_bytes()
    message = refused(tmp_path, lambda: load_arrays(content, batch(tmp_path), scan=False), NAME)
    assert "never run" in message


def test_a_thousand_mutated_pickles_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    good = files.pickled(
        {b"data": np.arange(64, dtype=np.uint8).reshape(2, 32), b"labels": [1, 2], b"x": [b"a", {b"k": 3}]}
    )
    messages = []
    for _ in range(1000):
        content = bytearray(good)
        for place in draw.integers(0, len(content), draw.integers(1, 4)):
            content[place] = draw.integers(0, 256)
        try:
            load_arrays(bytes(content), tmp_path / "mutated")
        except DataError as error:
            messages.append(str(error))
    assert 100 < len(messages) < 900
    assert all("mutated" in message for message in messages)


# --- archives


def archive_of(root: Path, change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]) -> None:
    """The good archive, with each member replaced by what `change` makes of it."""
    path = root / "cifar-10-python.tar.gz"
    with tarfile.open(path) as tar:
        old = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz") as tar:
        for member, content in (new for pair in old for new in change(*pair)):
            tar.addfile(member, io.BytesIO(content))


def swapped(**fields: object) -> Callable[[Path], None]:
    """Replace one member by something else of the same or another name."""

    def change(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if not member.name.endswith(NAME):
            return [(member, content)]
        new = tarfile.TarInfo(str(fields.get("name", member.name)))
        new.type = fields.get("type", tarfile.REGTYPE)  # type: ignore[assignment]
        new.linkname = str(fields.get("linkname", ""))
        body = fields.get("content", content if new.type == tarfile.REGTYPE else b"")
        new.size = len(body)  # type: ignore[arg-type]
        return [(new, body)] * int(fields.get("times", 1))  # type: ignore[arg-type, list-item]

    return lambda root: archive_of(root, change)


def tampered(root: Path) -> None:
    path = root / "cifar-10-python.tar.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVES: dict[str, Case] = {
    "truncated": (ARCHIVE, cut(lambda root: root / ARCHIVE)),
    "a flipped byte": (ARCHIVE, tampered),
    "not gzip": (ARCHIVE, lambda root: (root / ARCHIVE).write_text("hello") and None),
    "not tar": (ARCHIVE, lambda root: (root / ARCHIVE).write_bytes(gzip.compress(b"x" * 4096)) and None),
    "empty": (ARCHIVE, lambda root: (root / ARCHIVE).write_bytes(b"") and None),
    "a symbolic link to a system file": (ARCHIVE, swapped(type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a hard link out of the folder": (ARCHIVE, swapped(type=tarfile.LNKTYPE, linkname="../../secret")),
    "a device": (ARCHIVE, swapped(type=tarfile.CHRTYPE)),
    "a pipe": (ARCHIVE, swapped(type=tarfile.FIFOTYPE)),
    "a folder": (ARCHIVE, swapped(type=tarfile.DIRTYPE)),
    "a name that climbs out": (ARCHIVE, swapped(name="../../cifar-10-batches-py/" + NAME)),
    "an absolute name": (ARCHIVE, swapped(name="/cifar-10-batches-py/" + NAME)),
    "a member twice": (ARCHIVE, swapped(times=2)),
    "a member missing": (ARCHIVE, swapped(times=0)),
    "a pickle with code inside": (NAME, swapped(content=pickle.dumps(Attack(os.system, "false"), 2))),
    "a bomb under another name": (ARCHIVE, swapped(name="padding", content=bytes(8 << 20))),
    "a bomb in a member": (ARCHIVE, swapped(content=bytes(8 << 20))),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_broken_cifar_archive_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_ARCHIVE_CAP", 4 << 20)
    named, spoil = ARCHIVES[case]
    files.write_cifar(tmp_path, number=4, archive=True)
    assert sum(cifar.cifar10(tmp_path, clients=2, verify=False).sizes) == 20
    spoil(tmp_path)
    refused(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2, verify=False), named)


def test_an_archive_is_not_opened_before_its_hash_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_cifar(tmp_path, number=4, archive=True)
    monkeypatch.setattr(archives.tarfile, "open", lambda **_: pytest.fail("the archive was opened"))
    assert "hash" in refused(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2), ARCHIVE)


# --- federated HDF5


H5 = "fed_emnist_train.h5"


def edited(edit: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        with h5py.File(root / H5, "r+") as file:
            edit(file)

    return run


def client(file: h5py.File) -> h5py.Group:
    return file["examples/f0001_00"]


def put(name: str, values: object) -> Callable[[Path], None]:
    def edit(file: h5py.File) -> None:
        del client(file)[name]
        client(file)[name] = values

    return edited(edit)


def made(name: str, **options: object) -> Callable[[Path], None]:
    def edit(file: h5py.File) -> None:
        del client(file)[name]
        client(file).create_dataset(name, **options)

    return edited(edit)


def linked(where: str, link: object) -> Callable[[Path], None]:
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


@pytest.mark.parametrize("case", FEDERATED)
def test_a_broken_federated_file_is_refused(tmp_path: Path, case: str) -> None:
    named, spoil = FEDERATED[case]
    for which in ("train", "test"):
        files.write_federated_h5(tmp_path / f"fed_emnist_{which}.h5", clients=3, classes=62, per_client=(4, 4))

    def load() -> list[object]:
        data = federated_h5.emnist(tmp_path, verify=False)
        return [data.client(index) for index in range(data.clients)]

    assert len(load()) == 3
    spoil(tmp_path)
    refused(tmp_path, load, named)


def test_a_federated_file_without_its_published_counts_is_refused(tmp_path: Path) -> None:
    for which in ("train", "test"):
        files.write_federated_h5(tmp_path / f"fed_emnist_{which}.h5", clients=3, classes=62)
    assert "3,400" in refused(tmp_path, lambda: federated_h5.emnist(tmp_path), H5)
    (tmp_path / "fed_emnist_test.h5").unlink()
    refused(tmp_path, lambda: federated_h5.emnist(tmp_path, verify=False), "fed_emnist_test.h5")


# --- idx


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
def test_a_broken_idx_file_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "_CAP", 1 << 20)
    named, spoil = IDX[case]
    files.write_idx(tmp_path, idx.MNIST, number=10)
    assert sum(idx.mnist(tmp_path, clients=2, verify=False).sizes) == 10
    spoil(tmp_path)
    refused(tmp_path, lambda: idx.mnist(tmp_path, clients=2, verify=False), named)


def test_an_idx_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    files.write_idx(tmp_path, idx.MNIST, number=10)
    assert "not the published file" in refused(tmp_path, lambda: idx.mnist(tmp_path, clients=2), IMAGES)


# --- volumes


def nifti(name: str, values: np.ndarray) -> Callable[[Path], None]:
    return lambda root: (files.write_nifti(root / name, values), None)[1]


def nifti_bytes(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        content = gzip.decompress((root / name).read_bytes())
        (root / name).write_bytes(gzip.compress(change(content)))

    return run


def with_nan() -> np.ndarray:
    values = np.ones((12, 16, 10), np.float32)
    values[3, 3, 3] = np.nan
    return values


IMAGE, LABEL = "images/case_000.nii.gz", "labels/case_000.nii.gz"
SHAPE = (12, 16, 10)
HUGE = struct.pack("<8h", 3, 30000, 30000, 30000, 1, 1, 1, 1)
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
    "a bomb": (IMAGE, nifti_bytes(IMAGE, lambda content: content + bytes(8 << 20))),
}


@pytest.mark.parametrize("case", VOLUMES)
def test_a_broken_volume_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "_CAP", 1 << 20)
    named, spoil = VOLUMES[case]
    files.write_decathlon(tmp_path, cases=3, sizes=(SHAPE,))

    def load() -> list[object]:
        data = decathlon.decathlon(tmp_path, clients=1, size=SHAPE)
        return [data.client(0), data.test_examples()]

    assert len(load()) == 2
    spoil(tmp_path)
    refused(tmp_path, load, named)


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
    named, spoil = BRATS[case]
    files.write_brats(tmp_path, cases=4, size=(8, 8, 8))

    def load() -> list[object]:
        data = brats.brats(tmp_path, clients=1, size=(8, 8, 8))
        return [data.client(0), data.test_examples()]

    assert len(load()) == 2
    spoil(tmp_path)
    refused(tmp_path, load, named)
