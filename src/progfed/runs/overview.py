"""What a progressive model consists of and what its schedule will save, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.costs import Costs, PhaseCost, PhaseMemory
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.recipe import Recipe
from progfed.runs.experiment import Experiment
from progfed.runs.plan import Known, Plan, costs_of, plan, relative
from progfed.schedule import Phase, end_to_end, length
from progfed.wire.message import message_size


@dataclass(frozen=True)
class StageView:
    """A stage: what it adds to the one before, and what M^s costs a client: a message each way, FLOPs, memory.

    `head_share` is the share of the head in the message.
    """

    stage: int
    adds: tuple[str, ...]
    head: tuple[str, ...]
    parameters: int
    message_bytes: int
    head_share: float
    flops: int
    memory_bytes: int
    memory: PhaseMemory
    memory_relative: float


@dataclass(frozen=True)
class Span:
    """Some rounds of the schedule, and the bytes that a client is sent and sends in each of them."""

    stage: int
    rounds: int
    warmup: bool
    bytes: int


@dataclass(frozen=True)
class Overview:
    """All of it; `relative` are the fractions of what end-to-end training of the same model over T rounds costs."""

    experiment: str
    run: str
    model: str
    rounds: int
    batch: int
    stages: tuple[StageView, ...]
    schedule: tuple[Span, ...]
    relative: dict[str, float]


def overview(experiment: Experiment) -> Overview:
    """Look at the model and the schedule of an experiment; its data are not touched."""
    known: Known = {}
    costs = costs_of(experiment, known)
    model, recipe = costs.model, with_exact_buffers(experiment.recipe, costs.model)
    whole = replace(recipe, schedule=end_to_end(length(recipe.schedule), stages=model.stages))
    ours = plan(experiment, known)
    baseline = plan(replace(experiment, recipe=whole), known)
    spans = [
        Span(phase.stage, phase.rounds, phase.warmup, _messages(recipe, costs.phase(phase)))
        for phase in recipe.schedule
    ]
    return Overview(
        experiment=experiment.name,
        run=experiment.run,
        model=model.name,
        rounds=length(recipe.schedule),
        batch=recipe.local.batch,
        stages=_stages(costs, recipe, baseline),
        schedule=tuple(spans),
        relative=relative(ours, baseline),
    )


def _messages(recipe: Recipe, cost: PhaseCost) -> int:
    """The bytes of one client in a round, down and up."""
    return message_size(recipe.downward, cost.down) + message_size(recipe.upward, cost.up)


def _stages(costs: Costs, recipe: Recipe, baseline: Plan) -> tuple[StageView, ...]:
    """The stages that the schedule visits."""
    model, found = costs.model, list[StageView]()
    for stage in sorted({phase.stage for phase in recipe.schedule}):
        phase, before = Phase(stage, 1), found[-1].stage if found else 0
        cost, memory = costs.phase(phase), costs.memory(phase, recipe.local)
        found.append(
            StageView(
                stage=stage,
                adds=tuple(layer for new in range(before + 1, stage + 1) for layer in layers(model, f"E{new}")),
                head=layers(model, model.head(stage)),
                parameters=cost.parameters,
                message_bytes=message_size(recipe.downward, cost.down),
                head_share=cost.head_share,
                flops=cost.flops,
                memory_bytes=memory.peak,
                memory=memory,
                memory_relative=memory.peak / baseline["total"]["memory_bytes"],
            )
        )
    return tuple(found)


def layers(model: Progressive, part: str) -> tuple[str, ...]:
    """The modules that make up a part, as `name Type`; only the type where the part is one layer."""
    with torch.device("meta"):
        module = model.make(part)
    return tuple(_listed(module, "")) or (type(module).__name__,)


def _listed(module: nn.Module, path: str) -> Iterator[str]:
    """The modules inside, by name; a list of layers as its layers, however deep the list lies."""
    for name, child in module.named_children():
        inner = [key for key, _ in child.named_children()]
        bare = type(child).forward is nn.Module.forward
        if bare and not name.isdigit() and inner and (len(inner) == 1 or all(key.isdigit() for key in inner)):
            yield from _listed(child, f"{path}{name}.")
        else:
            yield f"{path}{name}{_kind(child)}"


def _kind(module: nn.Module) -> str:
    """The type of a layer; modules that only hold others' tensors have none worth telling."""
    return "" if type(module).forward is nn.Module.forward else f" {type(module).__name__}"
