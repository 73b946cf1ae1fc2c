"""When to grow, on the embedded images: the paper's fixed T_s next to stages that end when they no longer help.

The policies may use up to twice the paper's T_s in a stage, and have their default constants, which were chosen before
any of these runs: two windows of three rounds, so that a stage may be shorter than the paper's as well. `longest` is
the control: the same budgets, always used up.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments import fashion
from progfed.experiments.pairs import scheduled
from progfed.recipe.growth import Growth, Movement, Plateau
from progfed.runs.experiment import Experiment
from progfed.schedule import Schedule, as_published, end_to_end, stage_lengths

POLICIES: dict[str, Growth] = {"plateau": Plateau(), "movement": Movement()}


def _generous(rounds: int, *, stages: int) -> Schedule:
    """Budgets for stages that may end early: twice the paper's T_s, and the rest for the full model."""
    early = [2 * length for length in stage_lengths(rounds, stages)[:-1]]
    return as_published(rounds, stages=stages, lengths=[*early, rounds - sum(early)])


def adaptive(base: Experiment, run: str, rounds: int, *, stages: int) -> Experiment:
    """The run of this name, whose stages are ended by the policy of the same name; its baseline is `end-to-end`."""
    growing = replace(base, recipe=replace(base.recipe, growth=POLICIES[run]))
    return scheduled(growing, run, _generous(rounds, stages=stages), baseline="end-to-end")


_BASE = replace(fashion.BASE, name="growth")

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(fashion.ROUNDS, stages=fashion.STAGES)),
    scheduled(_BASE, "fixed", as_published(fashion.ROUNDS, stages=fashion.STAGES), baseline="end-to-end"),
    scheduled(_BASE, "longest", _generous(fashion.ROUNDS, stages=fashion.STAGES), baseline="end-to-end"),
    *(adaptive(_BASE, run, fashion.ROUNDS, stages=fashion.STAGES) for run in POLICIES),
)
