"""SCAFFOLD, written from outside: state on clients and on the server, and a second tensor in both directions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from progfed import Method, Visit


@dataclass(frozen=True)
class Control(Method):
    """Corrects every step by c - c_i."""

    def train(self, visit: Visit) -> None:
        common, own = visit.sent["c"], visit.remembered("c")
        drift = {name: common[name] - own[name] for name in own}
        visit.run(pull=lambda params: drift)
        change, scale = visit.change(), visit.steps * visit.lr
        after = {name: own[name] - common[name] - change[name] / scale for name in own}
        visit.keep("c", after)
        visit.send("c", {name: after[name] - own[name] for name in own})

    def down(self, trained: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {f"c/{name}": shape for name, shape in trained.items()}

    def up(self, trained: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return self.down(trained)

    def init(self, params: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        return {"c": {name: torch.zeros_like(value) for name, value in params.items()}}

    def update(
        self, mean: dict[str, Tensor], state: dict[str, dict[str, Tensor]], shares: Mapping[str, float]
    ) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        c = dict(state["c"])
        for name in [name for name in mean if name.startswith("c/")]:
            c[name[2:]] = c[name[2:]] + mean[name] * shares[name]
        return {name: value for name, value in mean.items() if not name.startswith("c/")}, {"c": c}


SETTINGS = {"method": Control()}
