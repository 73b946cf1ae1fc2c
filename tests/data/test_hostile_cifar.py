"""Broken and hostile CIFAR files: pickles with code, archives with links, bombs; nothing is ever run."""

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from progfed.data import archives, cifar
from progfed.data.pickles import load_arrays
from progfed.errors import DataError
from reliability import data_files as files

from .hostile import Case, Spoil, cut, refused, refused_once_spoiled


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


def written(content: bytes) -> Spoil:
    return lambda root: (batch(root).write_bytes(content), None)[1]


def attack(protocol: int, function: str = "system") -> Spoil:
    def run(root: Path) -> None:
        call = {
            "system": Attack(os.system, f"touch {root}/EXECUTED"),
            "eval": Attack(eval, f"open({str(root / 'EXECUTED')!r}, 'w')"),
            "open": Attack(open, str(root / "EXECUTED"), "w"),
        }[function]
        batch(root).write_bytes(pickle.dumps({b"data": call}, protocol))

    return run


def replaced_by(make: Callable[[Path], object]) -> Spoil:
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


PICKLES_REASONS = {
    "a memo index of four billion": "numbers its objects wrongly",
    "os.system, protocol 2": "nothing of it was run",
    "os.system, protocol 4": "nothing of it was run",
    "a pipe in its place": "not a regular file",
    "too large": "more than the",
}
"""Where another layer would refuse too: the safeguard meant for the case must be the one that speaks."""


@pytest.mark.parametrize("case", PICKLES)
def test_a_broken_cifar_batch_is_refused(tmp_path: Path, case: str) -> None:
    files.write_cifar(tmp_path, number=4)
    message = refused_once_spoiled(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2, verify=False), PICKLES[case])
    assert PICKLES_REASONS.get(case, "") in message


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


def archive_of(root: Path, change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]) -> None:
    """The good archive, with each member replaced by what `change` makes of it."""
    path = root / "cifar-10-python.tar.gz"
    with tarfile.open(path) as tar:
        old = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz") as tar:
        for member, content in (new for pair in old for new in change(*pair)):
            tar.addfile(member, io.BytesIO(content))


def swapped(**fields: object) -> Spoil:
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


ARCHIVES_REASONS = {
    "a bomb under another name": "decompresses to more than",
    "a bomb in a member": "decompresses to more than",
    "a symbolic link to a system file": "as a link",
    "a hard link out of the folder": "as a link",
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_broken_cifar_archive_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_ARCHIVE_CAP", 4 << 20)
    files.write_cifar(tmp_path, number=4, archive=True)
    message = refused_once_spoiled(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2, verify=False), ARCHIVES[case])
    assert ARCHIVES_REASONS.get(case, "") in message


def test_an_archive_is_not_opened_before_its_hash_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_cifar(tmp_path, number=4, archive=True)
    monkeypatch.setattr(archives.tarfile, "open", lambda **_: pytest.fail("the archive was opened"))
    assert "hash" in refused(tmp_path, lambda: cifar.cifar10(tmp_path, clients=2), ARCHIVE)
