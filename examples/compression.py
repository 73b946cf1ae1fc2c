"""What codecs save in each direction, and what they cost in accuracy, under progressive training.

Run it with `python examples/compression.py`; it takes less than a minute on the images that come with progfed.
"""

from __future__ import annotations

import argparse
import tempfile

import progfed
from progfed.codec import codec
from progfed.data.embedded import embedded
from progfed.models.convnet import convnet_mnist

CODECS = (("float", "float"), ("LQ-8", "LQ-8"), ("LQ-8+SP-25", "LQ-8"))


def main(rounds: int, clients: int = 20) -> None:
    data = embedded(clients=clients)
    print(f"{'up':<12}{'down':<8}{'accuracy':>10}{'sent up':>11}{'sent down':>11}")
    for up, down in CODECS:
        recipe = progfed.Recipe(
            schedule=progfed.progressive(rounds, stages=3, lengths=(1, rounds // 4, rounds - 1 - rounds // 4)),
            cohort=4,
            rate=progfed.Constant(0.05),
            local=progfed.Local(epochs=1, batch=20, momentum=0.9),
            up=codec(up),
            down=codec(down),
        )
        experiment = progfed.Experiment(
            name="compression", run=up, model=convnet_mnist(classes=10), data=data, recipe=recipe, evaluate_every=rounds
        )
        with tempfile.TemporaryDirectory() as folder:
            summary = progfed.run(experiment, folder, workers=2)
        sent = [f"{summary['cost'][way] / 1e6:.1f} MB" for way in ("up_bytes", "down_bytes")]
        print(f"{up:<12}{down:<8}{summary['metric']:>8.1f} %{sent[0]:>11}{sent[1]:>11}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    main(parser.parse_args().rounds)
