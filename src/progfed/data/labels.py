"""How many examples of each label each client has: what a partition looks like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from progfed.errors import UsageError
from progfed.population import FederatedData


def label_counts(data: FederatedData, clients: Sequence[int]) -> np.ndarray:
    """A row for each client and a column for each class: how many examples, or for label maps how many voxels."""
    if data.classes is None:
        raise UsageError(f"{data.name} has overlapping regions, not labels: there is no label distribution to show")
    rows = [np.bincount(data.client(client).targets.flatten().numpy(), minlength=data.classes) for client in clients]
    return np.stack(rows)


def spread(clients: int, most: int) -> list[int]:
    """At most this many clients, evenly spaced over the population, the first and the last included.

    >>> spread(10, 4)
    [0, 3, 6, 9]
    """
    if clients <= most:
        return list(range(clients))
    return [round(step * (clients - 1) / max(most - 1, 1)) for step in range(most)]
