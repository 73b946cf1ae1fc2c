"""How to train, as values: the recipe, rates, growth policies, turns, aggregation, server optimizers, privacy."""

from progfed.recipe.recipe import Local, Loss, Recipe

__all__ = ["Local", "Loss", "Recipe"]
