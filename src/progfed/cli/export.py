"""`progfed export`: the trained weights as a file that the user's own module loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from progfed.cli.options import Json
from progfed.cli.output import print_json
from progfed.errors import printable
from progfed.runs.exported import state_dict, write_state_dict


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[Path, typer.Option("--to", help="The file: .safetensors, or .pt for torch.load.")],
    best: Annotated[bool, typer.Option("--best", help="The best round's model instead of the last.")] = False,
    as_json: Json = False,
) -> None:
    """Write the trained weights under the names of your own module, for its `load_state_dict`."""
    tensors = state_dict(run, "best" if best else "last")
    write_state_dict(tensors, to)
    if as_json:
        print_json({"file": str(to), "tensors": {name: list(value.shape) for name, value in tensors.items()}})
        return
    print(f"{len(tensors)} tensors in {printable(str(to))}")
