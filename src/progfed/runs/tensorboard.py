"""A run's records as TensorBoard scalars: one more consumer of the records; TensorBoard is the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from progfed.errors import UsageError
from progfed.runs.directory import Record, RunDirectory

FOLDER = "tensorboard"


@contextmanager
def board(run: Path) -> Iterator[Callable[[Record], None]]:
    """Writes a record's scalars under its round, below the run's folder.

    The rounds that were recorded before are written first, into a file that replaces those of earlier sessions: no
    round is missing and none is there twice, whenever the run was interrupted or the log asked for.
    """
    make = _writer_class()
    writers: list[Any] = []

    def add(record: Record) -> None:
        if not writers:
            writers.append(_started(make, run, before=record["round"]))
        _write(writers[0], record)

    try:
        yield add
        if not writers:  # nothing was left to train: the records alone tell it all
            writers.append(_started(make, run, before=None))
    finally:
        for writer in writers:
            writer.close()


def scalars(record: Record) -> dict[str, float]:
    """What is drawn of a round: its metrics where it was evaluated, its loss, rate and stage, and all costs so far."""
    total = record["total"]
    found = {"metric": record["metric"], "loss": record["loss"], "stage": record["stage"], "lr": record["lr"]}
    found |= {f"metric/{name}": value for name, value in record.get("metrics", {}).items()}
    costs = {f"cost/{name}": total[name] for name in ("down_bytes", "up_bytes", "paper_bytes", "flops", "seconds")}
    return {name: float(value) for name, value in (found | costs).items() if value is not None}


def _started(make: Callable[[str], Any], run: Path, *, before: int | None) -> Any:
    folder = run / FOLDER
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = make(str(folder))
    for record in RunDirectory(run).records():
        if before is None or record["round"] < before:
            _write(writer, record)
    return writer


def _write(writer: Any, record: Record) -> None:
    for name, value in scalars(record).items():
        writer.add_scalar(name, value, record["round"])


def _writer_class() -> Callable[[str], Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--log tensorboard needs TensorBoard: pip install 'progfed[tensorboard]'") from error
    return SummaryWriter
