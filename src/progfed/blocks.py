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
    """G_s(E_s(…E_1(x))): how the blocks of a feed-forward network are wired."""
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


def _lasting(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
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

    `example` is one input with a leading dimension of 1 (it may live on the `meta` device), used to count costs.
    With `keep_head` there is one head, `G`, the same at every stage (symmetric U-Nets); otherwise the heads before
    the last are temporary, named `G1`…`GS`. `origin` names the tensors of a model that was split: from the names of
    its own `state_dict` to those they have here (empty: the model is described by its parts).

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

    def __post_init__(self) -> None:
        if not self.blocks or len(self.blocks) != len(self.heads):
            raise UsageError(
                f"{self.name}: {len(self.blocks)} blocks need as many heads, one per stage; found {len(self.heads)}"
            )

    @property
    def stages(self) -> int:
        return len(self.blocks)

    def head(self, stage: int) -> str:
        """The name of the head of a stage."""
        return "G" if self.keep_head else f"G{stage}"

    def parts(self, phase: Phase) -> tuple[str, ...]:
        """The parts of the sub-model that a phase uses, in order."""
        self._check(phase.stage)
        if max(phase.used_heads) > phase.stage:
            raise UsageError(
                f"head {max(phase.used_heads)} stands on more blocks than stage {phase.stage} has: name heads up to it"
            )
        if self.keep_head and len(phase.used_heads) > 1:
            raise UsageError(
                f"{self.name} keeps one head at every stage: a schedule with several heads needs temporary ones"
            )
        heads = dict.fromkeys(self.head(self._check(stage)) for stage in phase.used_heads)
        return (*(f"E{block}" for block in range(1, phase.stage + 1)), *heads)

    def trained(self, phase: Phase) -> tuple[str, ...]:
        """The parts that learn in a phase: its blocks, and all heads in use."""
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
        """A fresh module for a part such as `E2` or `G3`; its weights depend on the seed and on nothing made before."""
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
        blocks = {name: module for name, module in made.items() if name.startswith("E")}
        heads = {self.head(stage): (stage, made[self.head(stage)]) for stage in sorted(phase.used_heads)}
        return Stage(blocks, heads, self.wire)

    def shapes(self, phase: Phase) -> Stage:
        """The module of a phase on the `meta` device, made there if its makers allow it: it takes no memory."""
        with torch.device("meta"):
            return self.phase_module(phase).to("meta")

    def at(self, stage: int, tensors: Tensors | None = None, *, seed: int = 0) -> Stage:
        """M^s as an ordinary `nn.Module`, with these tensors, or freshly initialised ones."""
        module = self.phase_module(Phase(stage, 1), seed=seed)
        if tensors is not None:
            load(module, tensors)
        return module

    def export(self, tensors: Tensors) -> Tensors:
        """The weights of the full model as a `state_dict`: of the model that was split, or else of `at(stages)`.

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
        held = whole.state_dict()
        return {own: held[name] for own, name in self.origin.items()} if self.origin else dict(held)


def _check_numbers(module: nn.Module, where: str) -> None:
    """Refuse parameters that no gradient can change: they would not be trained, sent or saved."""
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise UsageError(
                f"{where}.{name} is of {value.dtype}, and only floating-point numbers can be trained: "
                "convert it, or register it as a buffer"
            )


def load(module: nn.Module, tensors: Tensors) -> None:
    """Copy the named tensors into a module that needs exactly these names, or more of them."""
    with torch.no_grad():
        for name, value in state(module).items():
            value.copy_(tensors[name])


def hold(held: Tensors, model: Progressive, phase: Phase, *, seed: int) -> Tensors:
    """The model that a client holds when a phase uses these parts: it knows how new parts start without being told."""
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
    """The paper's temporary head: a pooling layer and a fully connected layer (Sec. 3.1)."""
    return lambda: Pooled(channels, classes)


def biased(make: Make, bias: Sequence[float]) -> Make:
    """The same head with this bias of its last layer at the start; an empty one leaves it as it is.

    Where classes are rare, their logarithmic shares (of overlapping regions `log(p / (1 - p))`) let a new head
    predict them from the first step on. Otherwise it learns them by way of the features below it, whose units may die
    of that: see "Hippocampus" in docs/results.md.
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
