"""Table 5: ResNet-18 on federated CIFAR-100 with compressed updates (Sec. 4.4).

As published, a tensor is rotated at random before it is quantized; sparsification is a random mask on the client.
The downlink is not compressed in the paper: `--set down=LQ-8` does.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.codec import codec
from progfed.experiments.federated import CIFAR100
from progfed.experiments.pairs import pair
from progfed.experiments.printed import Paper, Printed, with_baseline

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

# run; metric and deviation, end-to-end and progressive; bytes in percent of float end-to-end, in the same order
_TABLE_5 = (
    ("float", (52.08, 0.44), (53.23, 0.09), 100.0, 77.10),
    ("lq-8", (49.40, 0.75), (53.07, 1.00), 25.00, 19.28),
    ("lq-4", (49.55, 0.59), (52.32, 0.15), 12.50, 9.64),
    ("lq-2", (47.26, 0.29), (52.87, 0.54), 6.25, 4.82),
    ("sp-25", (51.23, 0.56), (52.00, 0.19), 25.00, 19.28),
    ("sp-10", (51.79, 0.10), (51.86, 0.23), 10.00, 7.71),
    ("lq-8+sp-25", (49.67, 1.58), (52.19, 0.03), 6.25, 4.82),
    ("lq-8+sp-10", (50.25, 1.03), (52.24, 0.12), 2.50, 1.93),
)
PAPER = Paper(
    shown="Tables 5 and 11, Fig. 6",
    rows={
        name: row
        for run, baseline, ours, before, after in _TABLE_5
        for name, row in with_baseline(
            run,
            Printed(*baseline, bytes=before / 100, rounds=3000),
            Printed(*ours, bytes=after / 100, rounds=3000),
        ).items()
    },
    reference="float-end-to-end",
)
