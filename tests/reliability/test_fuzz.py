"""The fuzzer finds what is broken, keeps what is new, and every parser withstands its first inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from reliability.fuzz import Corpus, fuzz, outcomes
from reliability.parsers import Parser

from progfed.errors import DataError, MessageError
from progfed.files import read_regular


def nothing(data: bytes) -> None:
    """A parser without fault."""


def behind_a_digest(data: bytes) -> None:
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise MessageError("digest", "damaged")
    if b"\xff" in data[32:]:
        raise ZeroDivisionError


def endless(data: bytes) -> None:
    while data:
        pass


kept: list[bytes] = []


def greedy(data: bytes) -> None:
    kept.append(len(data) * (2**24 * b"x"))


def crashing(data: bytes) -> None:
    import ctypes

    ctypes.string_at(0)


def coloured(data: bytes) -> None:
    raise DataError("") if not data else type("Bare", (DataError,), {"__str__": lambda _: "\x1b[31m"})()


def seeds() -> Iterator[bytes]:
    yield b""
    yield b"some bytes that are no message"


def parser(read: object) -> Parser:
    def sealed(data: bytes) -> bytes:
        return hashlib.sha256(data).digest() + data

    return Parser("a parser", read, seeds, (MessageError, DataError), sealed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (behind_a_digest, "ZeroDivisionError"),
        (endless, "takes more than 1 s"),
        (greedy, "the memory has grown by"),
        (crashing, "ended by signal 11"),
        (coloured, "not printable"),
    ],
)
def test_a_parser_that_breaks_is_found_with_the_input_that_broke_it(
    read: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliability.fuzz.SLOW", 1 if read is endless else 60)
    done, wrong = fuzz(parser(read), tmp_path, seconds=60, most=5000, seed=0)
    assert done == 0
    assert said in wrong
    (found,) = (tmp_path / "found").iterdir()
    if read is behind_a_digest:
        with pytest.raises(ZeroDivisionError):
            behind_a_digest(found.read_bytes())


def test_a_parser_that_holds_has_all_its_inputs_and_no_trace(tmp_path: Path) -> None:
    assert fuzz(parser(nothing), tmp_path, seconds=60, most=200, seed=0) == (200, "")
    assert not (tmp_path / "found").exists()


def test_inputs_that_reach_new_lines_are_kept_for_the_next_time(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, parser(nothing))
    assert corpus.inputs == [b"", b"some bytes that are no message"]
    here = {(str(read_regular.__code__.co_filename), 1)}
    corpus.add(b"new", here)
    corpus.add(b"nothing new", here)
    assert Corpus(tmp_path, parser(nothing)).inputs[2:] == [b"new"]


def test_every_parser_withstands_its_first_inputs(tmp_path: Path) -> None:
    found = list(outcomes(tmp_path, seconds=60, most=6, seed=7))
    assert [(name, wrong) for name, done, wrong in found if wrong or done < 6] == []
    assert {"checkpoint", "run folder", "HDF5", "NIfTI", "text", "CIFAR pickle"} < {name for name, _, _ in found}
