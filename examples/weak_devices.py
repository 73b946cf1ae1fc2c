"""Half of the clients cannot train the full model: leave them out, or let each train the largest part that it can?

Run it with `python examples/weak_devices.py`; it takes less than a minute on the images that come with progfed. Clients
0, 2, 4, … are weak: half of them can train M^1 at most, the others M^2. Either way 30 % of the clients take part in a
round: of the strong half alone, or of all, where each name is averaged over those who trained it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

import progfed
from progfed.data.embedded import embedded
from progfed.models.convnet import convnet_mnist

CLIENTS, ROUNDS, SHARE = 20, 16, 0.3


def only(data: progfed.FederatedData, clients: Sequence[int]) -> progfed.FederatedData:
    """A population of some of the clients."""
    return replace(data, sizes=[data.sizes[client] for client in clients], load=lambda i: data.load(clients[i]))


def recipe(cohort: int) -> progfed.Recipe:
    return progfed.Recipe(
        schedule=progfed.progressive(ROUNDS, stages=3, lengths=(2, 6, 8)),
        cohort=cohort,
        rate=progfed.Constant(0.05),
        local=progfed.Local(epochs=1, batch=20, momentum=0.9),
    )


def main() -> None:
    everybody = embedded(clients=CLIENTS)
    deepest = [1 if client % 4 == 0 else 2 if client % 2 == 0 else 3 for client in range(CLIENTS)]
    populations = {
        "without them": only(everybody, [client for client in range(CLIENTS) if deepest[client] == 3]),
        "with them": replace(everybody, deepest=deepest),
    }
    print(f"{'weak clients':<14}{'accuracy':>10}{'down':>10}{'up':>10}")
    for name, data in populations.items():
        experiment = progfed.Experiment(
            name="weak devices",
            model=convnet_mnist(classes=10),
            data=data,
            recipe=recipe(cohort=round(SHARE * data.clients)),
            evaluate_every=ROUNDS,
        )
        with tempfile.TemporaryDirectory() as folder:
            summary = progfed.run(experiment, folder, workers=2)
        cost = summary["cost"]
        sent = [f"{cost[direction] / 1e6:.1f} MB" for direction in ("down_bytes", "up_bytes")]
        print(f"{name:<14}{summary['metric']:>8.1f} %{sent[0]:>10}{sent[1]:>10}")


if __name__ == "__main__":
    main()
