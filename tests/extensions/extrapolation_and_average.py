"""FedExP, which goes further along the mean the less clients agree, and an average of the model that is evaluated."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from progfed import Ema


@dataclass(frozen=True)
class Extrapolated:
    """The mean times max(1, sum |u_i|^2 / (2 n (|mean|^2 + eps)))."""

    eps: float = 1e-3

    def __call__(self, updates: Iterable[tuple[float, dict[str, Tensor]]]) -> dict[str, Tensor]:
        listed = [update for _, update in updates]
        mean = {name: sum(one[name] for one in listed) / len(listed) for name in listed[0]}
        own = sum(float(value.square().sum()) for one in listed for value in one.values())
        common = sum(float(value.square().sum()) for value in mean.values())
        factor = max(1.0, own / (2 * len(listed) * (common + self.eps)))
        return {name: factor * value for name, value in mean.items()}


SETTINGS = {"aggregate": Extrapolated(), "server": Ema(0.8)}
