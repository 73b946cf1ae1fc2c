"""Who holds which labels: counted, and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progfed.errors import UsageError
from progfed.files import replace_file
from progfed.population import FederatedData, pieces
from progfed.report.plots import FORMATS, figure_class, saved


def label_counts(data: FederatedData, clients: Sequence[int]) -> np.ndarray:
    """A row for each client and a column for each class: how many examples, or for label maps how many voxels."""
    labels = [_labels(data, client) for client in clients]
    classes = data.classes or max((int(own.max()) + 1 for own in labels), default=0)
    return np.stack([np.bincount(own.numpy(), minlength=classes) for own in labels])


def _labels(data: FederatedData, client: int) -> Tensor:
    targets = [piece.targets for piece in pieces(data.client(client))]
    if data.classes is None and any(own.dim() > 1 or own.is_floating_point() or own.min() < 0 for own in targets):
        raise UsageError(
            f"{data.name} has numbers, positions or overlapping regions as targets, and no number of classes: there is "
            "no label distribution to show"
        )
    return torch.cat([own.flatten().long() for own in targets])


def spread(clients: int, most: int) -> list[int]:
    """At most this many clients, evenly spaced over the population, the first and the last included.

    >>> spread(10, 4)
    [0, 3, 6, 9]
    """
    if clients <= most:
        return list(range(clients))
    return [round(step * (clients - 1) / max(most - 1, 1)) for step in range(most)]


def draw_labels(counts: np.ndarray, out: Path, *, clients: Sequence[int], title: str) -> Path:
    """Draw a map of labels: clients across, labels down, darker for more examples, and the clients' sizes above it.

    The file appears whole or not at all, and the same counts give the same bytes.

    Args:
        counts: A row for each client, a column for each label.
        out: The file to write; its ending chooses the format.
        clients: The number of the client of each row.
        title: The title of the picture.
    """
    kind = out.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"{out} cannot be drawn: choose a name that ends in .{', .'.join(FORMATS)}")
    replace_file(out, saved(_figure(counts, clients, title), kind))
    return out


def _figure(counts: np.ndarray, clients: Sequence[int], title: str) -> Any:
    figure = figure_class()(figsize=(8, 4.5), layout="constrained", dpi=150)
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
