"""Everything that reads bytes from outside, each with bytes to begin with: what `reliability.fuzz` tries to break."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from progfed.codec import schema_of
from progfed.data import federated_h5, idx, text, volumes
from progfed.data.pickles import load_arrays
from progfed.errors import DataError, MessageError, ProgfedError, StorageError
from progfed.report.collect import collect
from progfed.runs import checkpoint
from progfed.runs.directory import opened
from progfed.runs.identity import identity
from progfed.runs.resume import resume
from progfed.runs.train import train
from progfed.wire import message
from progfed.wire.message import CHANGE, DOWN, unseal
from progfed.wire.state import pack, unpack
from reliability import data_files
from reliability.cases import plain
from reliability.hostile import CODECS, EXPECTED, Target, target


@dataclass(frozen=True)
class Parser:
    """What reads bytes, what it may raise, and what it is given first.

    `prepare` makes a mutated input pass the outer checks, such as a digest or a compression: else nothing behind them
    would ever be reached. It is used for most inputs, not for all.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]
    allowed: tuple[type[ProgfedError], ...]
    prepare: Callable[[bytes], bytes] = bytes
    words: tuple[bytes, ...] = ()


def parsers(folder: Path) -> Iterator[Parser]:
    """All parsers; those of files work in this folder."""
    yield from map(_messages, CODECS)
    yield Parser("state of a client", unpack, _states, (MessageError,))
    yield _hosted()
    yield _checkpoints(folder / "checkpoint")
    yield _reports(folder / "report")
    yield from _data(folder)


def _messages(codec: str) -> Parser:
    aim = target(codec)

    def seeds() -> Iterator[bytes]:
        yield aim.message
        zeros = {name: torch.zeros_like(value) for name, value in aim.tensors.items()}
        yield aim.sealed(aim.codec.encode(zeros, 2))

    def read(data: bytes) -> None:
        for kind in (EXPECTED.kind, DOWN, CHANGE):
            expected = replace(EXPECTED, kind=kind)
            try:
                found = unseal(data, expected, schema_of(aim.tensors), aim.codec)[1]
            except MessageError:
                continue
            assert schema_of(found) == schema_of(aim.tensors), "other names or shapes than the schema's"
            assert all(bool(torch.isfinite(value).all()) for value in found.values()), "numbers that are not finite"

    return Parser(f"message {codec}", read, seeds, (MessageError,), partial(_sealed, aim))


def _sealed(aim: Target, data: bytes) -> bytes:
    return aim.sealed(data[message.OVERHEAD :])


def _states() -> Iterator[bytes]:
    some = {"E1.weight": torch.randn(3, 2), "G1.bias": torch.zeros(4)}
    yield pack({})
    yield pack({"lost": some})
    yield pack({"lost": some, "velocity": {}, "held": {"E2.x": torch.ones(())}})


def _hosted() -> Parser:
    from flwr.app import ConfigRecord, RecordDict

    from progfed.flower.wire import unpack_hosted

    def read(data: bytes) -> None:
        said = ConfigRecord({"sizes": data.decode("utf-8", "surrogateescape")})
        unpack_hosted(RecordDict({"progfed.fields": said}))

    words = (b"[" * 3000, b'{"1":' * 3000, b"9" * 5000, b"NaN", b"1e999", b'"-1"', b"true", b'"\xd9\xa3"')
    return Parser(
        "clients of a node", read, lambda: iter([b'{"0": 5, "17": 1000000000}', b"{}"]), (MessageError,), words=words
    )


def _run(folder: Path) -> Path:
    """A run that was stopped after two rounds."""
    if not folder.exists():
        running = train(plain().experiment, folder, data=folder.parent)
        next(running), next(running)
        running.close()
    return folder


def _checkpoints(folder: Path) -> Parser:
    run, experiment = folder / "run", identity(plain().experiment)

    def saved() -> Path:
        return max((_run(run) / "checkpoint").glob("round-*"))

    def seeds() -> Iterator[bytes]:
        for path in sorted(saved().iterdir()):
            yield path.name.encode() + b"\0" + path.read_bytes()

    def read(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(_run(run), copy)
        for other in sorted((copy / "checkpoint").glob("round-*"))[:-1]:
            shutil.rmtree(other)
        path = max((copy / "checkpoint").glob("round-*"))
        known = {one.name for one in path.iterdir()}
        chosen = name.decode("ascii", "replace")
        (path / (chosen if chosen in known else "state.json")).write_bytes(content)
        if chosen != "manifest.json":
            digests = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in path.iterdir()}
            del digests["manifest.json"]
            (path / "manifest.json").write_text(json.dumps({"format": checkpoint.FORMAT, "sha256": digests}))
        with opened(copy) as directory:
            resume(directory, experiment, {})

    words = (b'"round": -1', b'"round": 1e9', b"null", b"[]", b"{}", b'"I64"', b'"F64"', b'"BF16"', b"[" * 3000)
    return Parser("checkpoint", read, seeds, (StorageError,), words=words)


def _reports(folder: Path) -> Parser:
    run = folder / "run"
    names = ("experiment.json", "rounds.jsonl")

    def seeds() -> Iterator[bytes]:
        for name in names:
            yield name.encode() + b"\0" + (_run(run) / name).read_bytes()

    def read(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        copy = folder / "copies" / "one"
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(_run(run), copy, ignore=shutil.ignore_patterns("checkpoint"))
        (copy / (names[1] if name == names[1].encode() else names[0])).write_bytes(content)
        found = collect([copy.parent])
        assert all(problem.isprintable() for problem in found.problems), "a problem that is not printable"

    words = (b"null", b"NaN", b"Infinity", b"-1", b"1e400", b"[]", b"{}", b'"\\u001b"', b"[" * 3000, b"9" * 5000, b"\n")
    return Parser("run folder", read, seeds, (StorageError,), words=words)


def _data(folder: Path) -> Iterator[Parser]:
    made = folder / "data"
    images = data_files.write_idx(made, number=6)
    batch = data_files.write_cifar(made, number=2) / "data_batch_1"
    data_files.write_federated_h5(made / "train.h5", clients=2)
    scan = data_files.write_nifti(made / "scan.nii", np.ones((3, 4, 5), np.int16))

    play = data_files.write_play(made)

    yield _file("idx", folder / "idx" / "images.gz", partial(idx.read_idx, axes=3), lambda: images.glob("*images*"))
    yield _file("idx labels", folder / "idx" / "labels", partial(idx.read_idx, axes=1), lambda: images.glob("*labels*"))
    yield _pickles(folder / "batch", batch)
    yield _file("NIfTI", folder / "nifti" / "scan.nii.gz", volumes.read_nifti, lambda: iter([scan]))
    yield _hdf5(folder / "h5", made / "train.h5")
    yield _file(
        "text",
        folder / "text" / "play.txt",
        partial(text.by_speaker, context=8, minimum=10),
        lambda: iter([play]),
    )


def _file(name: str, path: Path, load: Callable[[Path], object], seeds: Callable[[], Iterator[Path]]) -> Parser:
    """A parser of one file; where it is compressed, what is inside is mutated, and sometimes the whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    zipped = path.suffix == ".gz"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load(path)

    def plain_bytes() -> Iterator[bytes]:
        for seed in seeds():
            content = seed.read_bytes()
            yield gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content

    prepare = partial(gzip.compress, compresslevel=1) if zipped else bytes
    return Parser(name, read, plain_bytes, (DataError,), prepare)


def _pickles(path: Path, batch: Path) -> Parser:
    def read(data: bytes) -> None:
        path.write_bytes(data)
        load_arrays(data, path)

    words = (
        b"cos\nsystem\n",
        b"\x93",
        b"R",
        b"b",
        b"q\xff",
        b"r\xff\xff\xff\x7f",
        b"(" * 500,
        b"]" * 500,
        b"\x85" * 500,
    )
    return Parser("CIFAR pickle", read, lambda: iter([batch.read_bytes()]), (DataError,), words=words)


def _hdf5(folder: Path, written: Path) -> Parser:
    folder.mkdir(exist_ok=True)

    def read(data: bytes) -> None:
        (folder / "train.h5").write_bytes(data)
        found = federated_h5.federated_h5(folder, train="train.h5", test="train.h5", classes=10)
        found.client(0), found.test_examples()

    return Parser("HDF5", read, lambda: iter([written.read_bytes()]), (DataError,))
