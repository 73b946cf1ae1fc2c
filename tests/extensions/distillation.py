"""Heads that teach each other: where a phase has two, the shallow one also learns what the deep one says."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from progfed import Method, Visit, progressive


@dataclass(frozen=True)
class Taught(Method):
    """The cross-entropy of every head, and `weight` times what divides each head from the deepest."""

    weight: float = 0.5

    def train(self, visit: Visit) -> None:
        visit.run(loss=self.loss)

    def loss(self, outputs: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
        *pupils, teacher = outputs if isinstance(outputs, tuple) else (outputs,)
        total = functional.cross_entropy(teacher, targets)
        for pupil in pupils:
            apart = functional.kl_div(pupil.log_softmax(1), teacher.detach().softmax(1), reduction="batchmean")
            total = total + functional.cross_entropy(pupil, targets) + self.weight * apart
        return total


SETTINGS = {"method": Taught(), "schedule": progressive(6, stages=3, overlap=1)}
