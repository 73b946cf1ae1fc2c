"""The trained model under the names that the user's own module has: a `state_dict` on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from progfed import files
from progfed.blocks import Progressive
from progfed.errors import StorageError
from progfed.runs.best import BEST
from progfed.runs.snapshots import FINAL, read_model
from progfed.tensors import Tensors

EXPORTED = "exported.safetensors"


def write_exported(run: Path, model: Progressive, tensors: Tensors) -> None:
    """Put the weights of a model that was split beside the run's own files, under the names of its `state_dict`.

    The file also says what each is called in the run's other files, so that those can be exported too.

    Args:
        run: The folder of the run.
        model: The model that was trained.
        tensors: Its parameters and buffers, by the run's own names.
    """
    found = {name: value.contiguous().clone() for name, value in model.export(tensors).items()}  # tied ones are apart
    files.replace_file(run / EXPORTED, save(found, metadata={"names": json.dumps(dict(model.origin))}))


def state_dict(run: Path, which: Literal["last", "best"] = "last") -> Tensors:
    """What the `load_state_dict` of the user's own module takes, from a run that is complete.

    Of a model that was described by its parts, it is that of `model.at(stages)`.

    Args:
        run: The folder of the run.
        which: The model of the last round, or that of the best one.
    """
    if not (run / "summary.json").exists():
        raise StorageError(f"{run} holds no run that is complete: give the folder of a finished `progfed run`")
    source = run / (FINAL if which == "last" else BEST)
    if not source.exists():
        raise StorageError(f"{run} has no {source.name}: it was trained by a version that kept none")
    if not (run / EXPORTED).exists():
        return read_model(source)
    own, names = _read(run / EXPORTED)
    if which == "last":
        return own
    trained = read_model(source)
    # what no gradient changes, such as a count of batches, is the same in every round that is exported
    return {name: trained.get(names[name], value).to(value.dtype) for name, value in own.items()}


def _read(path: Path) -> tuple[Tensors, dict[str, str]]:
    try:
        with safe_open(path, "pt") as held:
            return {name: held.get_tensor(name) for name in held.keys()}, json.loads(held.metadata()["names"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}): remove it, or train the run again") from error
