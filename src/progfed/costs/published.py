"""The paper's own count of bytes, replayed, so that its printed costs can be compared with ours (docs/costs.md).

The authors' loop counts what clients send, not what they are sent: 4 bytes a parameter times the nominal rate of the
codec. Two of its habits are part of every printed figure, so they are part of this count:

- It grows one round early: the round that should be the last of stage s trains, and is billed as, stage s + 1. So
  stage 1 has T_s - 1 rounds and the full model one more than planned. Here training grows when the schedule says,
  and only the bill of that round is the next stage's.
- In warm-up it keeps the size of the sub-model before and adds the new layers to it again in every round: the k-th
  warm-up round of stage s is billed as |M^(s-1)| + k (|E_s| + |G_s|), where only E_s and G_s are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from progfed.costs import Costs
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import Turn
from progfed.schedule import Phase, within


def cohort_bytes(recipe: Recipe, turn: Turn, depths: Iterable[int], *, closes: bool, costs: Costs) -> int:
    """What a round is billed for clients each of which can train up to the stage in `depths`."""
    return sum(
        clients * paper_bytes(recipe, turn.index, turn.offset, closes=closes, depth=depth, costs=costs)
        for depth, clients in Counter(depths).items()
    )


def paper_bytes(recipe: Recipe, index: int, offset: int, *, closes: bool, depth: int, costs: Costs) -> int:
    """What one client's round is billed: the round after `offset` others of phase `index`, its last if it `closes`.

    `depth` is the deepest stage that the client can train.
    """

    def trained(phases: Iterable[Phase]) -> int:
        return sum(costs.trained_parameters(within(phase, depth)) for phase in phases)

    phase = recipe.schedule[index]
    if phase.warmup:
        before = [earlier for earlier in recipe.schedule[:index] if not earlier.warmup][-1:]
        parameters = trained(before) + (offset + 1) * trained([phase])
    else:
        later = [later for later in recipe.schedule[index + 1 :] if not later.warmup][:1]
        parameters = trained(later if closes and later else [phase])
    return round(4 * recipe.up.rate * parameters)
