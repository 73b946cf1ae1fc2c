"""A recipe for a model with buffers, such as BatchNorm's statistics: its codecs leave them as they are."""

from __future__ import annotations

from dataclasses import replace

from progfed.blocks import Progressive
from progfed.codec import Codec, ExactBuffers, Float
from progfed.recipe.recipe import Recipe


def with_exact_buffers(recipe: Recipe, model: Progressive) -> Recipe:
    """The recipe as messages of this model are encoded: buffers travel as float32, whatever the codec of the rest.

    A variance that a codec has rounded to zero, or masked, would ruin a model; and there are few of them. Without
    buffers, or without compression, it is the recipe itself.
    """
    if all(isinstance(codec, Float | ExactBuffers) for codec in (recipe.up, recipe.down)):
        return recipe
    buffers = model.buffers()

    def around(codec: Codec) -> Codec:
        return codec if isinstance(codec, Float | ExactBuffers) else ExactBuffers(codec, buffers)

    return replace(recipe, up=around(recipe.up), down=around(recipe.down)) if buffers else recipe
