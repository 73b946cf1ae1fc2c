"""Plays by speaker: each speaker with enough text is a client, and the task is to predict the next character.

A play is plain text: a line `SPEAKER:`, the lines of the speech, an empty line. That is the form of the file known as
"tiny Shakespeare", and of the excerpts that come with progfed.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from progfed.data.integrity import MEGABYTE, read_file
from progfed.errors import DataError, UsageError
from progfed.population import Examples, FederatedData

PLAYS = Path(__file__).parent / "files" / "plays" / "speeches.txt"
ALPHABET = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
"""The 65 characters of tiny Shakespeare: fixed, since clients that keep their text cannot agree on one by looking."""

_CAP = 256 * MEGABYTE


def embedded_speakers(root: Path | None = None, *, context: int = 64, minimum: int = 1000) -> FederatedData:
    """The excerpts of plays that come with the package, by speaker; no folder is needed, so `root` is not used."""
    return by_speaker(PLAYS, context=context, minimum=minimum)


def by_speaker(
    path: Path, *, context: int = 64, minimum: int = 1000, held_out: float = 0.2, alphabet: str = ALPHABET
) -> FederatedData:
    """One client for each speaker, in the order of their names; inputs and targets are numbers of characters.

    Args:
        path: A text file of plays.
        context: The length of an input; its target is the characters that follow each of its own.
        minimum: The fewest characters of a speaker who is a client.
        held_out: About this share of each speaker's speeches, the last ones, is the test set.
        alphabet: The characters that the text may have; their places in it are their numbers.
    """
    if context < 1 or not 0 < held_out < 1:
        raise UsageError(f"a context of {context} and {held_out} held out: give 1 or more, and a share between 0 and 1")
    if len(set(alphabet)) < len(alphabet):
        raise UsageError("an alphabet has every character once")
    spoken = [speeches for _, speeches in sorted(speeches_of(path).items()) if len("\n".join(speeches)) >= minimum]
    clients, tests = [], []
    for speeches in spoken:
        cut = len(speeches) - last_speeches([len(speech) for speech in speeches], held_out)
        train = windows(_numbers(path, "\n".join(speeches[:cut]), alphabet), context)
        if train.number:
            clients.append(train)
            tests.append(windows(_numbers(path, "\n".join(speeches[cut:]), alphabet), context))
    if not any(test.number for test in tests):
        raise DataError(
            f"{path} has no speaker of {minimum} characters with windows of {context} to train and to test on: "
            "lower `minimum` or `context`, or use a longer play"
        )
    test = Examples(torch.cat([t.inputs for t in tests]), torch.cat([t.targets for t in tests]))
    return FederatedData(
        sizes=tuple(client.number for client in clients),
        load=lambda index: clients[index],
        test=lambda: test,
        classes=len(alphabet),
        name=f"speakers-{path.stem}",
    )


def speeches_of(path: Path) -> dict[str, list[str]]:
    """The speeches of every speaker in order; a paragraph without a name continues the speech before it."""
    content = read_file(path, cap=_CAP, needed="give the path of a play, as text with a line `SPEAKER:` above a speech")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for paragraph in _paragraphs(text):
        first, lines = paragraph[0].strip(), paragraph
        if first.endswith(":") and first != ":":
            current, lines = found.setdefault(first[:-1], []), paragraph[1:]
            current.append("")
        elif not found:
            raise DataError(
                f"{path} does not begin with a speaker but with {first[:40]!r}: put a line `SPEAKER:` first"
            )
        current[-1] = "\n".join([*([current[-1]] if current[-1] else []), *lines])
    if not found:
        raise DataError(f"{path} has no speeches: put a line `SPEAKER:` above each of them")
    return {speaker: [speech for speech in speeches if speech] for speaker, speeches in found.items()}


def _paragraphs(text: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def last_speeches(lengths: Sequence[int], share: float) -> int:
    """How many of the last speeches come nearest to a share of the whole; never all of them.

    >>> last_speeches([50, 30, 20], 0.2), last_speeches([10, 90], 0.2), last_speeches([100], 0.2)
    (1, 0, 0)
    """
    wanted, total = share * sum(lengths), 0
    gaps = [wanted]
    for length in reversed(lengths[1:]):
        total += length
        gaps.append(abs(total - wanted))
    return gaps.index(min(gaps))


def windows(numbers: Tensor, context: int) -> Examples:
    """Windows side by side, and their next characters; a rest at the end that does not fill a window is left out."""
    count = max(0, (len(numbers) - 1) // context)
    inputs, targets = numbers[: count * context], numbers[1 : count * context + 1]
    return Examples(inputs.view(count, context), targets.view(count, context))


def encode(text: str, alphabet: str = ALPHABET) -> Tensor:
    """The places of the characters in the alphabet.

    >>> encode("To be").tolist()
    [32, 53, 1, 40, 43]
    """
    place = {character: number for number, character in enumerate(alphabet)}
    if foreign := set(text) - place.keys():
        shown = "".join(sorted(foreign)[:10])
        raise DataError(f"{len(foreign)} characters ({shown!r}) are not in the alphabet: remove them, or give your own")
    return torch.tensor([place[character] for character in text], dtype=torch.int64)


def decode(numbers: Tensor, alphabet: str = ALPHABET) -> str:
    """The text that `encode` was given."""
    return "".join(alphabet[number] for number in numbers.tolist())


def _numbers(path: Path, text: str, alphabet: str) -> Tensor:
    try:
        return encode(text, alphabet)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
