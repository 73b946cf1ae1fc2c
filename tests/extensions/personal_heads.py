"""Personal heads, trained first on the features as they came, and then the blocks below them (as in FedRep)."""

from dataclasses import dataclass

from progfed import OnClients, Personal, Visit


@dataclass(frozen=True)
class HeadFirst(Personal):
    """Every client has its own heads."""

    def train(self, visit: Visit) -> None:
        visit.run(only=self.private)
        visit.run(only=lambda name: not self.private(name))


SETTINGS = {"method": OnClients(HeadFirst())}
