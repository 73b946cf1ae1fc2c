"""Text instead of images: a character-level transformer on excerpts of plays, one client for each speaker."""

from __future__ import annotations

from functools import partial

from progfed.data.text import embedded_speakers
from progfed.evaluate import token_accuracy
from progfed.experiments.pairs import scheduled
from progfed.losses import token_loss
from progfed.models.gpt import gpt
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import as_published, end_to_end

ROUNDS, STAGES, CONTEXT = 60, 3, 64

BASE = Experiment(
    name="speakers",
    model=partial(gpt, context=CONTEXT, layers=STAGES, stages=STAGES),
    data=partial(embedded_speakers, context=CONTEXT),
    recipe=Recipe(
        schedule=end_to_end(ROUNDS, stages=STAGES),
        cohort=8,
        rate=Cosine(0.1),
        local=Local(epochs=2, batch=4, momentum=0.9, loss=token_loss, clip=None),
    ),
    metric=token_accuracy,
    evaluate_every=2,
    clients=23,
    examples=439,
)

RUNS = (
    scheduled(BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(BASE, "progressive", as_published(ROUNDS, stages=STAGES), baseline="end-to-end"),
)
