"""`progfed export`: the trained weights as a file or folder that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from progfed.cli.options import Json
from progfed.cli.output import print_json
from progfed.cli.user_model import user_module, zeros
from progfed.errors import printable
from progfed.runs.export import export as write


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[
        Path,
        typer.Option(
            "--to", help="The file: .safetensors, .pt for torch.load, .onnx; or a folder, by save_pretrained."
        ),
    ],
    best: Annotated[bool, typer.Option("--best", help="The best round's model instead of the last.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="FILE:NAME", help="Your own module, for .onnx and folders.")
    ] = None,
    example: Annotated[str | None, typer.Option(help="The name of an example input in that file, for .onnx.")] = None,
    shape: Annotated[str | None, typer.Option("--input", help="Or its shape without the batch: 3x32x32.")] = None,
    dtype: Annotated[str, typer.Option(help="The input's type; tokens are int64.")] = "float32",
    as_json: Json = False,
) -> None:
    """Write the trained weights under the names of your own module, or the model with them."""
    sample = zeros(shape, dtype).repeat_interleave(2, 0) if shape else example
    module, inputs = user_module(model, example=sample) if model else (None, None)
    tensors = write(run, to, model=module, example=inputs, best=best)
    if as_json:
        print_json({"file": str(to), "tensors": {name: list(value.shape) for name, value in tensors.items()}})
        return
    print(f"{len(tensors)} tensors in {printable(str(to))}")
