"""A picture of who holds which labels."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from progfed.errors import StorageError, UsageError

KINDS = (".svg", ".png", ".pdf")


def draw_labels(counts: np.ndarray, out: Path, *, clients: Sequence[int], title: str) -> Path:
    """Draw a map of labels: clients across, labels down, darker for more examples, and the clients' sizes above it.

    The file appears whole or not at all, and the same counts give the same bytes.

    Args:
        counts: A row for each client, a column for each label.
        out: The file to write; its ending chooses the format.
        clients: The number of the client of each row.
        title: The title of the picture.
    """
    if out.suffix not in KINDS:
        raise UsageError(f"{out} cannot be drawn: choose a name that ends in {', '.join(KINDS)}")
    figure = _figure(counts, clients, title)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(out.suffix)
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=".drawing-", suffix=out.suffix)
    except OSError as error:
        raise StorageError(f"{out} cannot be written ({error.strerror}): choose another folder") from error
    os.close(handle)
    part = Path(name)
    try:
        with _matplotlib("matplotlib").rc_context({"svg.hashsalt": "progfed", "svg.fonttype": "path"}):
            figure.savefig(part, metadata=metadata)
        part.chmod(0o644)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return out


def _figure(counts: np.ndarray, clients: Sequence[int], title: str) -> Any:
    figure = _matplotlib("matplotlib.figure").Figure(figsize=(8, 4.5), layout="constrained", dpi=150)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    places = np.arange(len(counts))
    above.bar(places, counts.sum(1), width=1.0, color="#5b7f95")
    above.set_ylabel("examples")
    above.set_title(title, loc="left")
    above.spines[["top", "right"]].set_visible(False)
    shown = below.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0, origin="lower")
    ticks = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), 11)).astype(int))
    below.set_xticks(ticks, [str(clients[tick]) for tick in ticks])
    below.set_xlabel("client")
    below.set_ylabel("label")
    below.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(shown, ax=[above, below], label="examples of a label")
    return figure


def _matplotlib(module: str) -> Any:
    """A module of matplotlib; an error that says how to install it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError("drawing needs the package matplotlib: install it with `progfed[plots]`") from error
