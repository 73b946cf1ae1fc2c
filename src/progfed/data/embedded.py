"""The data set that comes with the package: 6,000 training and 1,000 test images of Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path

from progfed.data.idx import fashion_mnist
from progfed.population import FederatedData

FILES = Path(__file__).parent / "files" / "fashion-mnist"


def embedded(
    root: Path | None = None, *, clients: int = 50, partition: str = "dirichlet", seed: int = 0
) -> FederatedData:
    """The images that come with the package, over clients with different labels.

    Args:
        root: Not used, since no folder is needed; all loaders have it.
        clients: The number of clients.
        partition: How examples are shared out: see `progfed.data.partition.split`.
        seed: What the partition is drawn from.
    """
    return fashion_mnist(FILES, clients=clients, partition=partition, seed=seed, verify=False)
