"""A growth policy: a stage ends when the loss is below a bound, or when the newest block has moved far enough."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from progfed import Watch, progressive


@dataclass(frozen=True)
class Enough:
    """Keeps how far the newest block has gone in `watch.path`, and the drift itself as tensors."""

    far: float = 0.6
    reads_loss: ClassVar[bool] = True
    keep_total: ClassVar[bool] = True
    shortest: ClassVar[int] = 1

    def see(self, watch: Watch, loss: float, step: Mapping[str, Tensor]) -> Watch:
        drift = {name: watch.drift.get(name, 0) + value for name, value in step.items()}
        path = sum(float(value.square().sum()) for value in drift.values()) ** 0.5
        return replace(watch, signal=(loss,), drift=drift, path=path)

    def ends(self, watch: Watch, rounds: int) -> bool:
        return watch.signal[-1] < 0.5 or watch.path > self.far


SETTINGS = {
    "growth": "extensions.own_growth:Enough(far=0.3)",
    "schedule": progressive(8, stages=3, lengths=(3, 3, 2)),
}
