"""Segmentations to look at: a slice of a few test volumes, and the labels that each model of a run predicts for it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from progfed.analysis.source import Trained
from progfed.client.kernels import one_thread
from progfed.errors import StorageError
from progfed.files import replace_file
from progfed.population import Held
from progfed.runs.checkpoint import to_bytes
from progfed.runs.snapshots import read_model
from progfed.tensors import Tensors

FILE = "slices.safetensors"
NUMBER = 3


def segments(data: Held) -> bool:
    """Whether the targets have a label, or regions, for every position of an image or a volume."""
    one = data.take(slice(0, 1))
    return isinstance(one.inputs, Tensor) and one.targets.dim() >= one.inputs.dim() - 1 >= 3


def draw_slices(trained: Trained, test: Held, *, number: int = NUMBER) -> Tensors:
    """Slices of test volumes with the labels that each model of a run predicts for them.

    Of each volume it is the slice across the last axis that has most foreground.

    Args:
        trained: The run, as `open_run` returns it.
        test: The test set.
        number: How many volumes, from the first.

    Returns:
        `input`, `truth`, and the labels by each model on disk (`round-00010`), all `[slices, height, width]`.
    """
    some = test.take(slice(0, number))
    truth = labels(some.targets, some.inputs.dim() - 2)
    at = [int((one > 0).flatten(0, 1).sum(0).argmax()) if one.dim() == 3 else None for one in truth]
    found = {"input": _cut(some.inputs[:, 0].float(), at), "truth": _cut(truth, at)}
    for round_, stage, path in trained.models:
        module = trained.model.at(stage, read_model(path)).eval()
        with torch.inference_mode(), one_thread():
            outputs = torch.cat([module(some.inputs[one : one + 1]) for one in range(some.number)])
        regions = outputs.shape == some.targets.shape
        found[f"round-{round_:05d}"] = _cut(
            labels(outputs > 0, _at_dims(outputs)) if regions else outputs.argmax(1), at
        )
    return {name: value if name == "input" else value.to(torch.uint8) for name, value in found.items()}


def _at_dims(outputs: Tensor) -> int:
    """The number of axes of an image or volume in outputs `[examples, regions, …]`."""
    return outputs.dim() - 2


def labels(targets: Tensor, dims: int) -> Tensor:
    """Targets as one integer for each position; for overlapping regions, which are nested, how many contain it."""
    return targets.long() if targets.dim() == dims + 1 else (targets > 0.5).sum(1)


def _cut(values: Tensor, at: list[int | None]) -> Tensor:
    """The slice at this position of each volume."""
    return torch.stack([one if place is None else one[..., place] for one, place in zip(values, at, strict=True)])


def write(found: Tensors, run: Path) -> Path:
    """Write the slices of a run beside its records; returns the file."""
    path = run / FILE
    replace_file(path, to_bytes(found))
    return path


def read(run: Path) -> Tensors:
    """The slices of a run; empty where it was not analysed."""
    path = run / FILE
    if not path.exists():
        return {}
    try:
        found = read_model(path)
        if len({value.shape for value in found.values()}) != 1 or found["input"].dim() != 3:
            raise ValueError("its slices differ in shape")
        return found
    except (ValueError, KeyError, StorageError, SafetensorError) as error:
        raise StorageError(f"{path} is damaged ({error}): make it again with `progfed analyse`") from error
