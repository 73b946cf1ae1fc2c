"""A run that keeps to a budget of bytes: how many bits a number the messages of each round may take.

Every number of every round that is to come is worth the same, and so a round gets its share of what is left. What
earlier rounds did not use, since messages are a little shorter than they may be or clients were missing, goes to
those that follow. Nothing has to be remembered for that but what was spent, which every checkpoint has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from progfed.codec import Codec, Float, bits_of, numel
from progfed.costs import Cost, Costs
from progfed.errors import UsageError
from progfed.recipe.growth import Watch
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import Turn, earliest, next_turn, realised
from progfed.schedule import Phase, length
from progfed.wire.message import message_size

DOWN = 0.7
"""The share of a round's bits that goes down, for equally many numbers. The mean over a cohort averages the noise of
updates, and many of their numbers are zero or nearly, so that they bear a larger step than the model."""

LEAST = 0.25
"""Bits a number: with fewer, a message is mostly noise."""

Codecs = tuple[Codec, Codec]
"""What messages are made with, down and up."""


def affordable(recipe: Recipe, turn: Turn, watch: Watch, spent: Cost, costs: Costs, *, clients: float) -> Recipe:
    """The recipe with the codecs of a round with which the run keeps to its budget; as it is, where it has none.

    Args:
        recipe: What is trained.
        turn: The round.
        watch: What a growth policy knows, and so how long the phases before were.
        spent: The costs of all rounds before.
        costs: The costs of the model.
        clients: How many there are.
    """
    if recipe.bytes is None:
        return recipe
    schedule = realised(recipe.schedule, recipe.growth, watch.lengths)
    coming = [(phase, phase.rounds) for phase in schedule[turn.index :]]
    coming[0] = turn.phase, turn.phase.rounds - turn.offset
    left = (allowance(recipe, costs, clients) - spent.down_bytes - spent.up_bytes) / recipe.asked(clients)
    left -= sum(_besides(recipe, costs, phase) * rounds for phase, rounds in coming)
    bits = 8 * left / sum(_weighed(costs, phase) * rounds for phase, rounds in coming)
    return recipe.with_bits((_bits(recipe.down, DOWN * bits), _bits(recipe.up, (1 - DOWN) * bits)))


def allowance(recipe: Recipe, costs: Costs, clients: float) -> int:
    """The bytes that a recipe's budget stands for: that share of end-to-end training in floats over as many rounds."""
    assert recipe.bytes is not None
    whole = costs.phase(Phase(recipe.schedule[-1].stage, 1))
    both = message_size(Float(), whole.down) + message_size(Float(), whole.up)
    return int(recipe.bytes * length(recipe.schedule) * recipe.asked(clients) * both)


def codecs_of_phases(recipe: Recipe, costs: Costs, clients: float) -> list[Counter[Codecs]]:
    """For each phase of the schedule the codecs of its rounds, and how many rounds have them.

    With a budget they are those of a run whose messages are all as long as they may be.
    """
    if recipe.bytes is None:
        return [Counter({(recipe.downward, recipe.upward): phase.rounds}) for phase in recipe.schedule]
    found = [Counter[Codecs]() for _ in recipe.schedule]
    for turn, now, _ in _longest(recipe, costs, clients):
        found[turn.index][now.downward, now.upward] += 1
    return found


def check_budget(recipe: Recipe, costs: Costs, clients: float) -> None:
    """Refuse a budget that is too small for the schedule, however early a growth policy may end its phases."""
    if recipe.bytes is None:
        return
    shortest = earliest(recipe.schedule, recipe.growth) if recipe.growth is not None else recipe.schedule
    for schedule in (recipe.schedule, shortest):
        fixed = replace(recipe, schedule=schedule, growth=None)
        *_, (_, _, spent) = _longest(fixed, costs, clients)
        if spent.down_bytes + spent.up_bytes > allowance(fixed, costs, clients):
            least = (spent.down_bytes + spent.up_bytes) / allowance(replace(fixed, bytes=1 - 2**-20), costs, clients)
            raise UsageError(
                f"bytes={recipe.bytes:.4g} is too little: {math.ceil(1000 * least) / 10:g}% is about the least that "
                f"the messages of this schedule can take, with {LEAST:g} bits a number; give more, or grow for longer"
            )


def _longest(recipe: Recipe, costs: Costs, clients: float) -> Iterator[tuple[Turn, Recipe, Cost]]:
    """The rounds of a run whose messages are all as long as they may be: each with its codecs, and all that is spent
    when it is over."""
    recipe, spent, number = replace(recipe, growth=None), Cost(), 0
    while turn := next_turn(recipe, number, Watch()):
        now = affordable(recipe, turn, Watch(), spent, costs, clients=clients)
        phase, asked, number = costs.phase(turn.phase), recipe.asked(clients), turn.number
        down, up = message_size(now.downward, phase.down), message_size(now.upward, phase.up)
        spent += Cost(down_bytes=asked * down, up_bytes=asked * up)
        yield turn, now, spent


def _weighed(costs: Costs, phase: Phase) -> float:
    """How many numbers one client is sent and sends in a round of a phase, each by the share of its direction."""
    found = costs.phase(phase)
    return DOWN * numel(found.down) + (1 - DOWN) * numel(found.up)


def _besides(recipe: Recipe, costs: Costs, phase: Phase) -> float:
    """What the two messages of a client take besides the bits of their numbers: envelopes, buffers,
    and what a method sends."""
    found, bare = costs.phase(phase), recipe.with_bits((LEAST, LEAST))
    both = message_size(bare.downward, found.down) + message_size(bare.upward, found.up)
    return both - LEAST * (numel(found.down) + numel(found.up)) / 8


def _bits(most: Codec, bits: float) -> float:
    """Bits a number in thousandths, at least `LEAST` and no more than those of a codec."""
    return min(bits_of(most) or LEAST, max(LEAST, math.floor(1000 * bits) / 1000))
