"""Plays by speaker: nothing lost, nothing shared between training and test, and one line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed.data.text import (
    ALPHABET,
    PLAYS,
    by_speaker,
    decode,
    embedded_speakers,
    encode,
    last_speeches,
    speeches_of,
    windows,
)
from progfed.errors import DataError, UsageError


def play(folder: Path, text: str) -> Path:
    path = folder / "play.txt"
    path.write_bytes(text.encode())
    return path


@given(st.text(ALPHABET))
def test_decoding_undoes_encoding(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.integers(0, 200), st.integers(1, 20))
def test_every_target_is_the_character_after_its_input(length: int, context: int) -> None:
    numbers = torch.arange(length)
    made = windows(numbers, context)
    assert torch.equal(made.targets, made.inputs + 1)
    assert made.inputs.numel() == max(0, length - 1) // context * context
    assert made.inputs.flatten().tolist() == list(range(made.inputs.numel()))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_no_other_number_of_last_speeches_is_nearer_to_the_share(lengths: list[int], share: float) -> None:
    chosen = last_speeches(lengths, share)
    gap = {number: abs(sum(lengths[len(lengths) - number :]) - share * sum(lengths)) for number in range(len(lengths))}
    assert chosen in gap
    assert gap[chosen] == pytest.approx(min(gap.values()))


def test_speeches_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = play(
        tmp_path, "First Citizen:\r\nSpeak,\r\nspeak.\r\n\r\nAll:\nResolved.\n\n\nresolved.\n\nFirst Citizen:\nYou\n"
    )
    assert speeches_of(path) == {"First Citizen": ["Speak,\nspeak.", "You"], "All": ["Resolved.\nresolved."]}


def test_training_and_test_text_are_first_and_last_speeches(tmp_path: Path) -> None:
    first, last = "abcdefgh" * 4, "ZYXWVUTS"
    data = by_speaker(play(tmp_path, f"A:\n{first}\n\nA:\n{last}\n"), context=4, minimum=1)
    assert data.clients == 1
    assert decode(data.client(0).inputs.flatten()) in first
    assert decode(data.test_examples().inputs.flatten()) in last


def test_who_says_too_little_is_no_client(tmp_path: Path) -> None:
    path = play(tmp_path, "A:\n" + "abcde\n" * 20 + "\nA:\n" + "abcde\n" * 6 + "\nB:\nAy.\n")
    assert by_speaker(path, context=8, minimum=50).clients == 1


def test_the_embedded_play_has_a_client_for_every_long_part() -> None:
    parts = {name: sum(map(len, speeches)) for name, speeches in speeches_of(PLAYS).items()}
    assert sum(length > 1500 for length in parts.values()) >= 12
    data = embedded_speakers(context=32)
    assert data.clients == sum(len("\n".join(speeches)) >= 1000 for speeches in speeches_of(PLAYS).values())
    assert {data.client(index).inputs.shape[1] for index in range(data.clients)} == {32}
    tested = data.test_examples().number
    assert 0.1 < tested / (tested + sum(data.sizes)) < 0.3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no speeches"),
        (b"\n\n \n", "no speeches"),
        (b"Enter Hamlet.\n\nHAMLET:\nWords.\n", "does not begin with a speaker"),
        (b"HAMLET:\nWords \xff\xfe\n", "not text in UTF-8"),
        ("HAMLET:\nWörds, wörds, wörds.\n\nHAMLET:\nWords\n".encode(), "'ö'"),
        (b"HAMLET:\nWords\n", "no speaker of"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "play.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=told) as caught:
        by_speaker(path, context=2, minimum=1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_wrong_options_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        by_speaker(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="between 0 and 1"):
        by_speaker(PLAYS, held_out=1.0)
    with pytest.raises(UsageError, match="context of 0"):
        by_speaker(PLAYS, context=0)
    with pytest.raises(UsageError, match="every character once"):
        by_speaker(PLAYS, alphabet="aa")
