"""`progfed.export`: the trained weights in a file or a folder that PyTorch, transformers, PEFT or ONNX tools read."""

from __future__ import annotations

import io
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from progfed import files
from progfed.errors import StorageError, UsageError
from progfed.population import ready_inputs
from progfed.runs.exported import state_dict
from progfed.tensors import Tensors, tree_map

ENDINGS = (".safetensors", ".pt", ".pth", ".onnx")


def export(
    run: Path | str, to: Path | str, *, model: nn.Module | None = None, example: Any = None, best: bool = False
) -> Tensors:
    """Write what a finished run has trained, under the names of your own module.

    Args:
        run: The folder of the run.
        to: What is written, told by its ending: a `state_dict` (`.safetensors`, or `.pt` for `torch.load`), or the
            model with its weights (`.onnx`; needs the extra `onnx`). Without an ending it is a folder, which
            `model.save_pretrained` writes: models of transformers have it, and those of PEFT write only adapters.
        model: Your own module, for `.onnx` and folders. It is given the trained weights.
        example: A batch as the model takes it, for `.onnx`. The size of a batch is left open.
        best: Whether the model of the best round is written instead of the last.

    Returns:
        The weights, as `model.load_state_dict` takes them.
    """
    to, tensors = Path(to), state_dict(Path(run), "best" if best else "last")
    if not to.parent.is_dir():
        raise StorageError(f"there is no folder {to.parent}: make it, or choose another place")
    if to.suffix == ".safetensors":
        files.replace_file(to, save({name: value.contiguous() for name, value in tensors.items()}))
    elif to.suffix in (".pt", ".pth"):
        held = io.BytesIO()
        torch.save(tensors, held)
        files.replace_file(to, held.getvalue())
    elif to.suffix == ".onnx":
        files.replace_file(to, _onnx(_with_weights(model, tensors, to), example))
    elif not to.suffix:
        _write_folder(_with_weights(model, tensors, to), to)
    else:
        raise UsageError(f"{to} cannot be written: give a name that ends in {', '.join(ENDINGS)}, or a folder")
    return tensors


def _with_weights(model: nn.Module | None, tensors: Tensors, to: Path) -> nn.Module:
    """The user's module with the trained weights."""
    if model is None:
        raise UsageError(f"{to} holds the model, not only its weights: give your own module as well")
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        reason = (str(error).splitlines() or [""])[-1].strip()
        raise UsageError(
            f"the run's weights do not fit {type(model).__name__} ({reason:.200}): give the module that was split"
        ) from error
    return model


def _write_folder(model: nn.Module, to: Path) -> None:
    """The folder of `save_pretrained`: first beside its place, then moved there as a whole."""
    write = getattr(model, "save_pretrained", None)
    if not callable(write):
        raise UsageError(
            f"{type(model).__name__} has no save_pretrained, so {to} cannot become a folder of it: give a name that "
            f"ends in {', '.join(ENDINGS)}"
        )
    if to.is_dir() and any(to.iterdir()):
        raise StorageError(f"{to} is there already and not empty: remove it, or choose another folder")
    coming = to.with_name(f"{to.name}.writing")
    shutil.rmtree(coming, ignore_errors=True)
    try:
        write(coming)
        os.replace(coming, to)
    finally:
        shutil.rmtree(coming, ignore_errors=True)


def _onnx(model: nn.Module, example: Any) -> bytes:
    """The model in ONNX, with the first dimension of its inputs open."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError("ONNX needs packages that are not installed: pip install 'progfed[onnx]'") from error
    if example is None:
        raise UsageError("ONNX needs an example: a batch of inputs as the model takes it")
    inputs = ready_inputs(example)
    arguments = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    named = inputs if isinstance(inputs, dict) else {}
    shapes = tree_map(lambda leaf: {0: torch.export.Dim.AUTO}, named or arguments)  # type: ignore[arg-type, return-value]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(*arguments, **named)
        with _quiet():
            made = torch.onnx.export(
                model.eval(), arguments, kwargs=named, dynamic_shapes=shapes, dynamo=True, verbose=False
            )
        assert made is not None
        content: bytes = made.model_proto.SerializeToString()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"torch cannot write {type(model).__name__} as ONNX: {reason:.200}") from error
    finally:
        model.train(training)
    return content


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes about itself, such as that torchvision is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
