"""Progressive models: M^s = G_s . E_s . ... . E_1 (Eq. 2), with names that survive growth.

A parameter is named after the paper's part it belongs to (`E1.…`, `G2.…`) and keeps that name at every stage, so
growing, freezing, sending, checkpointing and costing are all the same question: *which names?*
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from progfed import rng
from progfed.errors import UsageError
from progfed.schedule import Phase, Schedule
from progfed.tensors import Tensors, of_parts, part

Make = Callable[[], nn.Module]
Wire = Callable[[Sequence[nn.Module], Mapping[int, nn.Module], Any], Iterable[Any]]
"""Blocks, heads by the number of blocks they stand on, and inputs -> the outputs of the heads, the shallowest first."""


def chain(blocks: Sequence[nn.Module], heads: Mapping[int, nn.Module], inputs: Any) -> Iterable[Any]:
    """How the blocks of a feed-forward network are wired: G_s(E_s(…E_1(x))), for each of the heads in use."""
    outputs = []
    for depth, block in enumerate(blocks[: max(heads)], start=1):
        inputs = block(inputs)
        if depth in heads:
            outputs.append(heads[depth](inputs))
    return outputs


def state(module: nn.Module) -> Tensors:
    """The tensors that training changes: parameters, and floating-point buffers such as BatchNorm statistics.

    Buffers that a module declares as not persistent are what it can compute again, such as tables of positions.
    """
    named = {**dict(module.named_parameters()), **dict(_lasting(module))}
    return {name: value.detach() for name, value in named.items() if value.is_floating_point()}


def buffer_names(module: nn.Module) -> frozenset[str]:
    """The floating-point buffers among the tensors that training changes."""
    return frozenset(state(module)) - {name for name, _ in module.named_parameters()}


def _lasting(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """The buffers of a module that its `state_dict` keeps, by name."""
    for prefix, child in module.named_modules():
        for leaf, buffer in child.named_buffers(recurse=False):
            if leaf not in child._non_persistent_buffers_set:
                yield f"{prefix}.{leaf}" if prefix else leaf, buffer


class Stage(nn.Module):
    """M^s as an ordinary module: children `E1`…`Es` and the head, or heads, of a phase."""

    def __init__(self, blocks: dict[str, nn.Module], heads: dict[str, tuple[int, nn.Module]], wire: Wire) -> None:
        super().__init__()
        for name, module in blocks.items():
            self.add_module(name, module)
        for name, (_, module) in heads.items():
            self.add_module(name, module)
        self._blocks = tuple(blocks)
        self._heads = tuple((name, depth) for name, (depth, _) in heads.items())
        self._wire = wire

    @property
    def chained(self) -> bool:
        """Whether every block is called with the output of the one before, and with nothing else."""
        return self._wire is chain

    def forward(self, inputs: Any) -> Any:
        """The output of the head; a tuple of outputs where a phase uses several heads."""
        children: dict[str, Any] = self._modules
        blocks = [children[name] for name in self._blocks]
        heads = {depth: children[name] for name, depth in self._heads}
        outputs = tuple(self._wire(blocks, heads, inputs))
        return outputs[0] if len(outputs) == 1 else outputs


@dataclass(frozen=True)
class Progressive:
    """A model that can grow: how to make its blocks E_1..E_S and its heads G_1..G_S, and how they are wired.

    Parameters are named after the part they belong to, such as `E2.weight`, and keep that name at every stage.

    Args:
        blocks: For each stage a function that makes the block E_s, a module.
        heads: For each stage a function that makes the head G_s. Heads before the last are temporary.
        example: One input with a leading dimension of 1, by which costs are counted; it may be on the `meta` device.
        wire: How blocks and heads are connected; by default one block after the other.
        keep_head: Whether there is only one head, `G`, which is the same at every stage, as in symmetric U-Nets.
        name: The model's name in errors and records.
        origin: For a model that was split: from the names in its own `state_dict` to the names that the tensors have
            here. Empty for a model that is described by its parts.
        dtypes: The types that tensors of a split model had before they were made float32; `export` gives them back.
        frozen: A digest of the weights that no side sends because every side has them; empty where there are none.

    >>> model = Progressive(
    ...     blocks=(lambda: nn.Linear(2, 3), lambda: nn.Linear(3, 4)),
    ...     heads=(lambda: nn.Linear(3, 1), lambda: nn.Linear(4, 1)),
    ...     example=torch.zeros(1, 2),
    ... )
    >>> list(model.init("E2", seed=0))
    ['E2.weight', 'E2.bias']
    >>> [name for name, _ in model.at(2).named_children()]
    ['E1', 'E2', 'G2']
    """

    blocks: tuple[Make, ...]
    heads: tuple[Make, ...]
    example: Any
    wire: Wire = chain
    keep_head: bool = False
    name: str = "model"
    origin: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    frozen: str = ""

    def __post_init__(self) -> None:
        if not self.blocks or len(self.blocks) != len(self.heads):
            raise UsageError(
                f"{self.name}: {len(self.blocks)} blocks need as many heads, one per stage; found {len(self.heads)}"
            )

    @property
    def stages(self) -> int:
        """S, the number of stages."""
        return len(self.blocks)

    def head(self, stage: int) -> str:
        """The name of the head of a stage."""
        return "G" if self.keep_head else f"G{stage}"

    def parts(self, phase: Phase) -> tuple[str, ...]:
        """The names of the blocks and heads that a phase uses, in order, such as `("E1", "E2", "G2")`.

        A model that keeps one head at every stage has only that one, whatever heads the phase asks for.
        """
        self._check(phase.stage)
        if max(phase.used_heads) > phase.stage:
            raise UsageError(
                f"head {max(phase.used_heads)} stands on more blocks than stage {phase.stage} has: name heads up to it"
            )
        heads = dict.fromkeys(self.head(self._check(stage)) for stage in phase.used_heads)
        return (*(f"E{block}" for block in range(1, phase.stage + 1)), *heads)

    def trained(self, phase: Phase) -> tuple[str, ...]:
        """The names of the blocks and heads that learn in a phase: the blocks that it trains, and all heads in use."""
        heads = dict.fromkeys(self.head(stage) for stage in phase.used_heads)
        return (*(f"E{self._check(block)}" for block in phase.trained_blocks), *heads)

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule that asks for a stage, block or head that the model lacks."""
        for phase in schedule:
            self.parts(phase)
            self.trained(phase)

    def _check(self, stage: int) -> int:
        if not 1 <= stage <= self.stages:
            raise UsageError(
                f"{self.name} has {self.stages} blocks, so stages 1 to {self.stages}; "
                f"the schedule asks for stage {stage}: use at most {self.stages} stages"
            )
        return stage

    def make(self, part: str, *, seed: int = 0) -> nn.Module:
        """A fresh module for a part such as `E2` or `G3`; its weights depend only on the seed and the part's name."""
        makers = self.blocks if part.startswith("E") else self.heads
        maker = self.heads[-1] if part == "G" else makers[self._check(int(part[1:])) - 1]
        with rng.default(seed, "init", part):
            return maker()

    def init(self, part: str, *, seed: int) -> Tensors:
        """The initial tensors of a part, by name."""
        return {f"{part}.{name}": value.clone() for name, value in state(self.make(part, seed=seed)).items()}

    def phase_module(self, phase: Phase, *, seed: int = 0) -> Stage:
        """The module of a phase, in which only what the phase trains requires gradients."""
        made = {name: self.make(name, seed=seed) for name in self.parts(phase)}
        trained = self.trained(phase)
        for name, module in made.items():
            _check_numbers(module, f"{self.name}: parameter {name}")
            module.requires_grad_(name in trained)
        return self.joined(phase, made)

    def joined(self, phase: Phase, made: Mapping[str, nn.Module]) -> Stage:
        """The module of a phase from modules that are there already: those of its parts, by name."""
        blocks = {name: made[name] for name in self.parts(phase) if name.startswith("E")}
        heads = {self.head(stage): (stage, made[self.head(stage)]) for stage in sorted(phase.used_heads)}
        return Stage(blocks, heads, self.wire)

    def shapes(self, phase: Phase) -> Stage:
        """The module of a phase on the `meta` device, made there if its makers allow it: it takes no memory."""
        with torch.device("meta"):
            return self.phase_module(phase).to("meta")

    def buffers(self) -> frozenset[str]:
        """The floating-point buffers of all blocks and heads, such as BatchNorm's statistics: they travel, and are no
        parameters."""
        found: set[str] = set()
        for stage in range(1, self.stages + 1):
            found |= buffer_names(self.shapes(Phase(stage, 1)))
        return frozenset(found)

    def at(self, stage: int, tensors: Tensors | None = None, *, seed: int = 0) -> Stage:
        """The sub-model of a stage, M^s, as an ordinary `nn.Module`.

        Args:
            stage: The number of the stage, from 1.
            tensors: The weights, by name, such as those of a run's final model; more names than needed do no harm.
            seed: Where no weights are given, the seed of the initial ones.
        """
        module = self.phase_module(Phase(stage, 1), seed=seed)
        if tensors is not None:
            load(module, tensors)
        return module

    def export(self, tensors: Tensors) -> Tensors:
        """The weights of the full model as a `state_dict`, to load without progfed.

        For a model that was split, it fits the original model; for any other, the module `at(stages)`.

        Args:
            tensors: The weights of a model that has reached the last stage, by name.

        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> from progfed.split import split
        >>> model = split(net, stages=1, example=torch.zeros(1, 2))
        >>> net.load_state_dict(model.export(model.init("E1", seed=0) | model.init("G1", seed=0)))
        <All keys matched successfully>
        """
        whole = self.at(self.stages)
        if missing := [name for name in state(whole) if name not in tensors]:
            raise UsageError(
                f"{self.name} cannot be exported: {len(missing)} of its tensors are not there yet ({missing[0]}, …): "
                f"export what training has reached at stage {self.stages}"
            )
        load(whole, tensors)
        if not self.origin:
            return dict(whole.state_dict())
        held = {**whole.state_dict(), **dict(whole.named_buffers())}  # what was frozen is a buffer that no file keeps
        return {own: held[name].to(self.dtypes.get(own, held[name].dtype)) for own, name in self.origin.items()}


def _check_numbers(module: nn.Module, where: str) -> None:
    """Refuse parameters that no gradient can change: they would not be trained, sent or saved."""
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise UsageError(
                f"{where}.{name} is of {value.dtype}, and only floating-point numbers can be trained: "
                "convert it, or register it as a buffer"
            )


def load(module: nn.Module, tensors: Tensors) -> None:
    """Copy tensors into a module by name; every name that the module needs must be among them, others are ignored."""
    with torch.no_grad():
        for name, value in state(module).items():
            value.copy_(tensors[name])


def hold(held: Tensors, model: Progressive, phase: Phase, *, seed: int) -> Tensors:
    """The model that a client holds when a phase begins: of `held`, the parts that the phase uses, and new parts.

    New parts are not sent. Every side makes them from the seed, to the same bits.
    """
    parts = model.parts(phase)
    kept = of_parts(held, parts)
    present = {part(name) for name in kept}
    for new in parts:
        if new not in present:
            kept |= model.init(new, seed=seed)
    return kept


class Pooled(nn.Module):
    """Global average over the positions of `[batch, channels, …]`, then one fully connected layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Tensor:
        pooled: Tensor = self.fc(features.flatten(2).mean(2) if features.dim() > 2 else features)
        return pooled


def pooled_head(channels: int, classes: int) -> Make:
    """The paper's temporary head: the average over all positions, then one fully connected layer (Sec. 3.1).

    Args:
        channels: The channels of the features that it takes, `[batch, channels, …]`.
        classes: The number of outputs.

    Returns:
        A function that makes such a head, as `Progressive` takes it.
    """
    return lambda: Pooled(channels, classes)


def biased(make: Make, bias: Sequence[float]) -> Make:
    """The same head, except that the bias of its last layer starts with the given values.

    Where classes are rare, their logarithmic shares (of overlapping regions `log(p / (1 - p))`) let a new head
    predict them from the first step on. Otherwise it learns them by way of the features below it, whose units may die
    of that: see "Hippocampus" in docs/results.md.

    Args:
        make: A function that makes a head.
        bias: A number for each class. Empty: the head is left as it is.

    Returns:
        A function that makes the head.
    """
    if not bias:
        return make

    def made() -> nn.Module:
        head = make()
        found = [value for name, value in head.named_parameters() if name.endswith("bias") and len(value) == len(bias)]
        if not found:
            raise UsageError(
                f"bias {tuple(bias)} has {len(bias)} numbers, and a head has no bias of as many "
                f"({type(head).__name__}): give a number for each class, or leave it out"
            )
        with torch.no_grad():
            found[-1].copy_(torch.tensor(bias))
        return head

    return made
