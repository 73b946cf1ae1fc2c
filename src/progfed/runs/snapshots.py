"""Models of rounds on the way, kept next to the records: what analyses of a run over time are made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from progfed import files
from progfed.errors import StorageError, UsageError
from progfed.runs import checkpoint
from progfed.server.rounds import Round
from progfed.tensors import Tensors

FOLDER = "models"
FINAL = "model.safetensors"


def keeping(rounds: Iterator[Round], run: Path, every: int | None) -> Iterator[Round]:
    """The same rounds, with the model of every `every`-th, and of the last before each growth, in a file of its own.

    A round that is trained again after a crash writes the same file again.
    """
    if every is None:
        yield from rounds
        return
    if every < 1:
        raise UsageError(f"models can be kept every 1, 2, 3, … rounds, not every {every}")
    for done in rounds:
        if done.number % every == 0 or done.closes:
            files.make_directory(run / FOLDER)
            path = run / FOLDER / f"round-{done.number:05d}.safetensors"
            files.replace_file(path, checkpoint.to_bytes(done.progress.params))
        yield done


def kept(run: Path) -> dict[int, Path]:
    """The files of the models that a run has kept, by round."""
    found = {path.stem.removeprefix("round-"): path for path in (run / FOLDER).glob("round-*.safetensors")}
    return {int(number): found[number] for number in sorted(found) if number.isascii() and number.isdigit()}


def read_model(path: Path) -> Tensors:
    """The tensors of a kept model, or of a final one."""
    try:
        return load_safetensors(files.read_regular(path))
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path} cannot be read ({error}): remove it, or train the run again") from error
