"""The embedded default: 6,000 training and 1,000 test images of Fashion-MNIST, shipped with the package."""

from __future__ import annotations

from pathlib import Path

from progfed.data.idx import fashion_mnist
from progfed.population import FederatedData

FILES = Path(__file__).parent / "files" / "fashion-mnist"


def embedded(
    root: Path | None = None, *, clients: int = 50, partition: str = "dirichlet", seed: int = 0
) -> FederatedData:
    """The embedded images over clients with different labels; they need no folder, so `root` is not looked at."""
    return fashion_mnist(FILES, clients=clients, partition=partition, seed=seed, verify=False)
