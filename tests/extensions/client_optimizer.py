"""A client optimizer: steps in the direction of the sign of an average of gradients."""

from typing import Any

import torch

from progfed import Local


class Signs(torch.optim.Optimizer):
    """w <- w - lr sign(m), m <- decay m + (1 - decay) gradient."""

    def __init__(self, params: Any, lr: float, decay: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["decay"])
                p.sub_(m.sign(), alpha=group["lr"])


SETTINGS = {"local": Local(epochs=2, batch=4, optimizer=Signs), "rate": 0.01}
