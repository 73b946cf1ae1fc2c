"""Segmentation on one machine: the paper's BraTS setting on the hippocampus, with a U-Net of a third of the width."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.decathlon import hippocampus
from progfed.experiments.federated import BRATS
from progfed.experiments.pairs import scheduled
from progfed.models.unet import unet
from progfed.schedule import end_to_end, progressive

ROUNDS, STAGES = 20, 4
SIZE = (32, 56, 40)  # half of the voxels of the largest volume; no volume loses a voxel of its hippocampus
_UNET = partial(unet, widths=(8, 16, 32, 64), in_channels=1, regions=3, size=SIZE)
_BASE = replace(
    BRATS,
    name="hippocampus",
    model=partial(_UNET, growth="symmetric"),
    data=partial(hippocampus, clients=10, size=SIZE),
    recipe=replace(BRATS.recipe, local=replace(BRATS.recipe.local, epochs=1)),
    examples=208,
)
_GROWING = progressive(ROUNDS, stages=STAGES, lengths=(ROUNDS // STAGES,) * STAGES)

RUNS = (
    # both ways of growing end in the same U-Net, so one baseline serves them
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(_BASE, "symmetric", _GROWING, baseline="end-to-end"),
    scheduled(replace(_BASE, model=partial(_UNET, growth="asymmetric")), "asymmetric", _GROWING, baseline="end-to-end"),
)
