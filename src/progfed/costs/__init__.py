"""What a round of training costs: bytes, FLOPs and memory of a phase, each counted once for a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from progfed.blocks import Progressive
from progfed.costs.memory import PhaseMemory, phase_memory
from progfed.costs.phase import Cost, PhaseCost, phase_cost, trained_parameters, up_schema
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.recipe import Local, Recipe
from progfed.schedule import Phase, within
from progfed.wire.message import message_size

__all__ = ["Cost", "Costs", "PhaseCost", "PhaseMemory"]


class Costs:
    """What the phases of a model cost with a method of training it; counted when first asked for, and remembered."""

    def __init__(self, model: Progressive, method: Method = PLAIN) -> None:
        self.model, self.method = model, method
        self._phases: dict[Phase, PhaseCost] = {}
        self._trained: dict[Phase, int] = {}
        self._memory: dict[tuple[Phase, Local], PhaseMemory] = {}

    def phase(self, phase: Phase) -> PhaseCost:
        """What a phase costs one client, for one example."""
        key = _alike(phase)
        if key not in self._phases:
            self._phases[key] = phase_cost(self.model, key, self.method)
        return self._phases[key]

    def trained_parameters(self, phase: Phase) -> int:
        """How many parameters a client trains in a phase: sooner found than all of its cost."""
        key = _alike(phase)
        if key not in self._trained:
            self._trained[key] = trained_parameters(self.model, key, self.method)
        return self._trained[key]

    def memory(self, phase: Phase, local: Local) -> PhaseMemory:
        """What a step of a client's training in a phase holds in memory."""
        key = _alike(phase), replace(local, epochs=1)
        if key not in self._memory:
            self._memory[key] = phase_memory(self.model, *key, self.method)
        return self._memory[key]

    def longest_update(self, recipe: Recipe, deepest: Iterable[int] = ()) -> int:
        """The length of the longest update of any phase of a recipe, in bytes; a bound where the codec is not exact.

        `deepest` are the deepest stages that clients can train, where some cannot train all of them.
        """
        recipe = with_exact_buffers(recipe, self.model)
        depths = {*deepest, self.model.stages}
        phases = {_alike(within(phase, depth)) for phase in recipe.schedule for depth in depths}
        return max(message_size(recipe.upward, up_schema(self.model, phase, self.method)) for phase in phases)


def _alike(phase: Phase) -> Phase:
    """One phase for all that train the same sub-model in the same way, however long and at whatever rate."""
    return replace(phase, rounds=1, warmup=False, hold=False)
