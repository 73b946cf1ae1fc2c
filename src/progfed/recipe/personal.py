"""Personal parts of the model (Arivazhagan et al., 2019): each client keeps its own, and nobody else sees them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from progfed.errors import UsageError
from progfed.recipe.method import Around


@dataclass(frozen=True)
class Personal(Around):
    """Parts of the model that never leave the clients: every client trains its own, which begin as all others do.

    They are neither sent nor billed, and the server has none of them: `OnClients` evaluates the model with each
    client's own. Heads are personal by default: blocks are learned together, and every client has a head for its own
    labels.

    Args:
        of: How clients train: another method, such as `Scaffold()`.
        names: Which tensors are personal, as patterns of their names: `"G*"` are all heads, `"*.norm.*"` all layers
            named `norm`.
    """

    names: tuple[str, ...] | str = "G*"

    def __post_init__(self) -> None:
        given = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        if not given or not all(isinstance(one, str) for one in given):
            raise UsageError(f"personal parts are given as patterns of names such as 'G*', not {self.names!r:.60}")
        object.__setattr__(self, "names", given)

    def private(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names) or self.of.private(name)
