"""Segmentation on one machine: the paper's BraTS setting on the hippocampus, with a U-Net of a third of the width."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log

from progfed.data.decathlon import hippocampus
from progfed.experiments.federated import BRATS
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper
from progfed.models.unet import unet
from progfed.recipe.rate import Constant, Cosine, PerStage, Restart
from progfed.runs.experiment import Experiment
from progfed.schedule import as_published, end_to_end, with_warmup

ROUNDS, STAGES = 12, 4
SIZE = (32, 56, 40)  # half of the voxels of the largest volume; no volume loses a voxel of its hippocampus
_UNET = partial(unet, widths=(8, 16, 32, 64), in_channels=1, regions=3, size=SIZE)
_BASE = replace(
    BRATS,
    name="hippocampus",
    model=partial(_UNET, growth="symmetric"),
    # 200 volumes to train on, 20 a client, and 60 to test: with batches of 2 no step is left with a single volume,
    # for which torch has slow kernels only
    data=partial(hippocampus, clients=10, size=SIZE, test_fraction=60 / 260),
    recipe=replace(BRATS.recipe, rate=Cosine(0.1), local=replace(BRATS.recipe.local, batch=2)),
    examples=200,
)
# one cosine over all rounds would leave the full model, which the paper trains in the last quarter only, rates near 0
_RATES = PerStage((*[Constant(0.1)] * (STAGES - 1), Restart(Cosine(0.1))))
_RESTARTED = replace(_BASE, recipe=replace(_BASE.recipe, rate=_RATES))
_QUARTERS = as_published(ROUNDS, stages=STAGES, lengths=(ROUNDS // STAGES,) * STAGES)
_SYMMETRIC, _ASYMMETRIC = (
    replace(_RESTARTED, model=partial(_UNET, growth=growth)) for growth in ("symmetric", "asymmetric")
)
# three remedies for asymmetric growth, which fails: more rounds for the full model, a round for each new block alone,
# and heads that begin with the classes' shares of the voxels, which serve the other runs as well
_HALF = as_published(ROUNDS, stages=STAGES)
_SHARES = (0.954, 0.024, 0.022)


def _prior(run: Experiment) -> Experiment:
    """The same run, with heads that begin with the logarithmic shares of the classes."""
    assert isinstance(run.model, partial)
    baseline = run.baseline and f"prior-{run.baseline}"
    return replace(
        run, run=f"prior-{run.run}", model=partial(run.model, bias=tuple(map(log, _SHARES))), baseline=baseline
    )


_FIRST = (
    # both ways of growing end in the same U-Net, so one baseline serves them
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(_SYMMETRIC, "symmetric", _QUARTERS, baseline="end-to-end"),
    scheduled(_ASYMMETRIC, "asymmetric", _QUARTERS, baseline="end-to-end"),
    scheduled(_ASYMMETRIC, "asymmetric-half", _HALF, baseline="end-to-end"),
)
# what end-to-end training gives for the bytes of `symmetric`, with a cosine that ends there
_EQUAL_BYTES = scheduled(_BASE, "equal-bytes", end_to_end(5, stages=STAGES), baseline="end-to-end")
RUNS = (
    *_FIRST,
    scheduled(_ASYMMETRIC, "asymmetric-warm-up", with_warmup(_QUARTERS, 1), baseline="end-to-end"),
    *map(_prior, (*_FIRST, _EQUAL_BYTES)),
)

PAPER = Paper(shown="Table 3, Figs. 5 and 15 to 17, on smaller volumes and over fewer rounds", bars="bytes")
