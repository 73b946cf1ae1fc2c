"""CIFAR-10 on one machine: the paper's federated setting over fewer rounds, with its codecs and update strategies."""

from __future__ import annotations

import math
from dataclasses import replace

from progfed.codec import codec
from progfed.experiments.federated import CIFAR10
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper
from progfed.recipe.rate import Constant, Cosine, PerStage, Restart
from progfed.schedule import as_published, end_to_end, layerwise, mixed, partial, random

ROUNDS, STAGES = 32, 4
_RECIPE = replace(CIFAR10.recipe, local=replace(CIFAR10.recipe.local, skip_above=math.inf))
# the published rate, without the guard of the published loop: these runs are older than it
_PUBLISHED = replace(CIFAR10, name="cifar10", evaluate_every=2, recipe=_RECIPE)
# so short an end-to-end run is a point better with this than with the published rate of 0.1, at which it starts slowly
BASE = replace(_PUBLISHED, recipe=replace(_RECIPE, rate=Cosine(0.03)))
_RATES = PerStage((Constant(0.1), Constant(0.1), Constant(0.03), Restart(Cosine(0.03))))
_RESTARTED = replace(BASE, recipe=replace(BASE.recipe, rate=_RATES))
_SMALL, _SMALL_RESTARTED, _SMALL_PUBLISHED = (
    replace(base, recipe=replace(base.recipe, up=codec("LQ-8+SP-25"), down=codec("LQ-8")))
    for base in (BASE, _RESTARTED, _PUBLISHED)
)

END_TO_END = end_to_end(ROUNDS, stages=STAGES)
PROGRESSIVE = as_published(ROUNDS, stages=STAGES)
# what end-to-end training gives for the bytes of progressive training, with a cosine that ends there
_EQUAL_BYTES = end_to_end(23, stages=STAGES)

RUNS = (
    scheduled(BASE, "end-to-end", END_TO_END),
    scheduled(BASE, "progressive", PROGRESSIVE, baseline="end-to-end"),
    scheduled(BASE, "equal-bytes", _EQUAL_BYTES, baseline="end-to-end"),
    # two remedies for what that rate costs while the model grows: rates of the stages' own, rounds for the new block
    scheduled(_RESTARTED, "restart", PROGRESSIVE, baseline="end-to-end"),
    scheduled(BASE, "warm-up", as_published(ROUNDS, stages=STAGES, warmup=1), baseline="end-to-end"),
    scheduled(_SMALL, "lq-8+sp-25-end-to-end", END_TO_END, baseline="end-to-end"),
    scheduled(_SMALL, "lq-8+sp-25", PROGRESSIVE, baseline="end-to-end"),
    scheduled(_SMALL_RESTARTED, "lq-8+sp-25-restart", PROGRESSIVE, baseline="end-to-end"),
    *(
        scheduled(BASE, name, strategy(ROUNDS, stages=STAGES), baseline="end-to-end")
        for name, strategy in {"layerwise": layerwise, "partial": partial, "mixed": mixed, "random": random}.items()
    ),
    scheduled(_PUBLISHED, "published-end-to-end", END_TO_END),
    scheduled(_PUBLISHED, "published", PROGRESSIVE, baseline="published-end-to-end"),
    scheduled(_PUBLISHED, "published-equal-bytes", _EQUAL_BYTES, baseline="published-end-to-end"),
    scheduled(_SMALL_PUBLISHED, "published-lq-8+sp-25-end-to-end", END_TO_END, baseline="published-end-to-end"),
    scheduled(_SMALL_PUBLISHED, "published-lq-8+sp-25", PROGRESSIVE, baseline="published-end-to-end"),
)

PAPER = Paper(shown="Table 3, Figs. 4, 5 and 15, over fewer rounds", bars="bytes")
