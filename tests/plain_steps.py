"""Federated training written once more with plain torch: full batches, plain gradient steps, nothing of progfed's loop.

What is taken from progfed is who is drawn, how parts start, and the data; the arithmetic is that of the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from progfed import Constant, FederatedData, Local, Progressive, Recipe, from_clients, progressive, rng

Named = dict[str, Tensor]

EPOCHS, LR, CLIENTS, COHORT = 3, 0.3, 5, 3


def model() -> Progressive:
    """Two stages without anything random, in 70 parameters."""
    return Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh()), lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh())),
        heads=(lambda: nn.Linear(5, 3), lambda: nn.Linear(4, 3)),
        example=torch.zeros(1, 4),
        name="two stages",
    )


def data(**settings: object) -> FederatedData:
    """Clients whose labels are unlike each other's: client i has mostly label i."""
    draw = rng.generator(0, "plain steps")

    def some(client: int) -> tuple[Tensor, Tensor]:
        labels = torch.where(torch.rand(8, generator=draw) < 0.7, client % 3, torch.randint(3, (8,), generator=draw))
        return torch.randn(8, 4, generator=draw) + labels[:, None], labels

    return from_clients([some(i) for i in range(CLIENTS)], test=some(0), classes=3, **settings)  # type: ignore[arg-type]


def recipe(**changes: object) -> Recipe:
    """Full batches, plain steps at one rate, uniform weights; two stages with warm-up."""
    local = Local(epochs=EPOCHS, batch=8, clip=None)
    settings: dict[str, object] = {
        "schedule": progressive(6, stages=2, warmup=1, overlap=0),
        "cohort": COHORT,
        "rate": Constant(LR),
        "local": local,
        "weighting": "uniform",
        "seed": 5,
    }
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def gradient(made: Progressive, stage: int, params: Mapping[str, Tensor], client: int, trained: set[str]) -> Named:
    """The gradient of a client's mean cross-entropy over all its examples, by name."""
    examples = data().client(client)
    wanted = {name: value.clone().requires_grad_(name in trained) for name, value in params.items()}
    outputs = functional_call(made.at(stage), wanted, (examples.inputs,))  # type: ignore[union-attr]
    loss = nn.functional.cross_entropy(outputs, examples.targets)  # type: ignore[union-attr]
    names = [name for name in wanted if name in trained]
    return dict(zip(names, torch.autograd.grad(loss, [wanted[name] for name in names]), strict=True))


def rounds(wanted: Recipe, one: Callable[[int, tuple[int, ...], Progressive, int, Named, set[str]], Named]) -> Named:
    """Go through the schedule; `one` is given the round, the cohort, the model, the stage, the parameters and the names
    that learn, and returns the step of those."""
    made, params, number = model(), dict[str, Tensor](), 0
    for phase in wanted.schedule:
        parts = made.parts(phase)
        params = {name: value for name, value in params.items() if name.split(".")[0] in parts}
        for part in parts:
            if not any(name.startswith(f"{part}.") for name in params):
                params |= made.init(part, seed=wanted.seed)
        trained = {name for name in params if name.split(".")[0] in made.trained(phase)}
        for _ in range(phase.rounds):
            number += 1
            step = one(number, wanted.draw(CLIENTS, number), made, phase.stage, params, trained)
            params = {name: value + step[name] if name in step else value for name, value in params.items()}
    return params
