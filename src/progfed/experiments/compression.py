"""Table 5: ResNet-18 on federated CIFAR-100 with compressed updates (Sec. 4.4).

As published, a tensor is rotated at random before it is quantized; sparsification is a random mask on the client.
The downlink is not compressed in the paper: `--set down=LQ-8` does.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.codec import codec
from progfed.experiments.federated import CIFAR100
from progfed.experiments.pairs import pair

CODECS = {
    "float": "float",
    "lq-8": "ROT+LQ-8",
    "lq-4": "ROT+LQ-4",
    "lq-2": "ROT+LQ-2",
    "sp-25": "SP-25",
    "sp-10": "SP-10",
    "lq-8+sp-25": "ROT+LQ-8+SP-25",
    "lq-8+sp-10": "ROT+LQ-8+SP-10",
}

RUNS = tuple(
    run
    for name, up in CODECS.items()
    for run in pair(
        replace(CIFAR100, name="compression", run=name, recipe=replace(CIFAR100.recipe, up=codec(up))),
        stages=4,
        warmup=25,
    )
)
