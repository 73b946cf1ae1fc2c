"""The parts of a split model, and the skeleton that runs them: the model's own forward, with the parts' tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from progfed.client.kernels import guard_norms
from progfed.split.heads import TiedTokens
from progfed.split.trace import attention_mask, call, features, logits
from progfed.tensors import tree_map


@dataclass(frozen=True)
class Held:
    """A tensor of the model that was split, under its name there.

    Only tensors with `learns` are trained. A `frozen` one is a parameter that the user has frozen. A buffer may be one
    that no `state_dict` keeps.
    """

    name: str
    value: Tensor
    learns: bool = False
    frozen: bool = False
    buffer: bool = False
    persistent: bool = True


class Part(nn.Module):
    """E_s or G_S of a split model: holds tensors under the names that they have in the model; it has no forward."""

    def __init__(self, held: Sequence[Held]) -> None:
        super().__init__()
        self._idle = frozenset(item.name for item in held if not item.learns)
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for item in held:
            *path, leaf = item.name.split(".")
            owner: nn.Module = self
            for step in path:
                if step not in owner._modules:
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            # on the device that is asked for: on `meta` a copy costs nothing
            value = torch.empty_like(item.value, device=torch.get_default_device()).copy_(item.value)
            if item.frozen:  # whoever has the model has it already: neither trained, sent nor saved
                owner.register_buffer(leaf, value, persistent=False)
            elif item.buffer:
                owner.register_buffer(leaf, value, persistent=item.persistent)
            else:
                owner.register_parameter(leaf, nn.Parameter(value, requires_grad=item.learns))
            self._places[item.name] = owner, leaf

    def requires_grad_(self, requires_grad: bool = True) -> Part:
        """As for any module, except for parameters that no gradient reaches: they stay as they are."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(requires_grad and name not in self._idle)
        return self

    def tensor(self, name: str) -> Tensor:
        """The tensor that has this name in the model."""
        owner, leaf = self._places[name]
        found = owner._parameters[leaf] if leaf in owner._parameters else owner._buffers[leaf]
        assert found is not None
        return found


class _Reached(BaseException):
    """Raised to end a forward where the sub-model ends; no `except Exception` in the model's code can catch it."""


@dataclass(frozen=True)
class _Slot:
    """A place for a tensor in the skeleton; all names of a tied tensor lead to the same place."""

    owner: nn.Module
    leaf: str
    buffer: bool
    part: str
    name: str
    blank: Tensor

    def put(self, value: Tensor) -> None:
        """Let the skeleton use this tensor. Not by `setattr`, which would make a parameter of it."""
        (self.owner._buffers if self.buffer else self.owner._parameters)[self.leaf] = value  # type: ignore[assignment]

    def copy_back(self, value: Tensor) -> None:
        """Copy a buffer that the forward has replaced, rather than changed in place, back into the part."""
        now = self.owner._buffers[self.leaf]
        if now is not None and now is not value:
            with torch.no_grad():
                value.copy_(now)


class Skeleton:
    """A private copy of the model without tensors; the parts lend theirs to it for each run.

    With `plain`, convolution weights and images are lent in the usual memory layout: some forwards work with no other.
    """

    def __init__(self, model: nn.Module, homes: Mapping[str, tuple[str, str]]) -> None:
        """`homes`: the part and the name there, for each name of a tensor in the model."""
        self.model = guard_norms(model)
        self.plain = False
        self._recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        self._slots = [_slot(model, name, *home) for name, home in homes.items()]
        for slot in self._slots:
            slot.put(slot.blank)

    def run(self, parts: Mapping[str, nn.Module], inputs: Any, *, training: bool) -> Tensor:
        """The model's own forward with the tensors of these parts, up to its logits."""
        if self.model.training != training:
            self.model.train(training)
        if self.plain:
            inputs = tree_map(lambda leaf: leaf.contiguous(), inputs)
        with self._lent(parts):
            return logits(call(self.model, inputs))

    @contextmanager
    def _lent(self, parts: Mapping[str, nn.Module]) -> Iterator[None]:
        lent: list[tuple[_Slot, Tensor]] = []
        for slot in self._slots:
            if slot.part in parts:
                value = parts[slot.part].tensor(slot.name)  # type: ignore[operator]
                lent.append((slot, value))
                slot.put(value.contiguous() if self.plain and not slot.buffer else value)
        self._flatten()
        try:
            yield
        finally:
            for slot, value in lent:
                if slot.buffer:
                    slot.copy_back(value)
                slot.put(slot.blank)
            self._flatten()

    def _flatten(self) -> None:
        """Recurrent layers keep a list of their own with the tensors they use: let them make it again."""
        for module in self._recurrent:
            module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def _slot(model: nn.Module, name: str, part: str, home: str) -> _Slot:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    value = owner._buffers.get(leaf)
    buffer = value is not None
    value = value if value is not None else owner._parameters[leaf]
    assert value is not None
    blank = torch.empty_like(value, device="meta").detach()
    return _Slot(owner, leaf, buffer, part, home, blank if buffer else nn.Parameter(blank, requires_grad=False))


@dataclass(frozen=True, eq=False)
class EarlyExit:
    """The wiring of a split model: M^s is the model until the module that ends block s returns, then the head G_s.

    M^S is the whole model, with G_S as the tensors of its own last layers. Several heads take one run.
    """

    skeleton: Skeleton
    cuts: tuple[str, ...]

    def __call__(self, blocks: Sequence[nn.Module], heads: Mapping[int, nn.Module], inputs: Any) -> list[Tensor]:
        stages = len(self.cuts) + 1
        deepest = max(heads)
        parts = {f"E{depth}": block for depth, block in enumerate(blocks[:deepest], start=1)}
        if stages in heads:
            parts[f"G{stages}"] = heads[stages]
        outputs: list[Tensor] = []
        with ExitStack() as stack:
            for depth in heads:
                if depth < stages:
                    module = self.skeleton.model.get_submodule(self.cuts[depth - 1])
                    hook = _exit(_ready(heads[depth], parts["E1"], inputs), outputs, last=depth == deepest)
                    stack.callback(module.register_forward_hook(hook).remove)
            with suppress(_Reached):
                outputs.append(self.skeleton.run(parts, inputs, training=blocks[0].training))
        return outputs


def _ready(head: nn.Module, first: nn.Module, inputs: Any) -> Callable[[Any], Tensor]:
    """A head as a function of the features alone: one that uses the model's embedding or its mask is lent it."""
    if isinstance(head, TiedTokens):
        return partial(head, weight=first.tensor(head.embedding))  # type: ignore[operator]
    mask = attention_mask(inputs)
    return partial(head, attention_mask=mask) if mask is not None and _takes_mask(head.forward) else head


def _takes_mask(forward: Callable[..., Any]) -> bool:
    return "attention_mask" in signature(forward).parameters


def _exit(head: Callable[[Any], Tensor], outputs: list[Tensor], *, last: bool) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that gives a module's output to a head, and ends the run if it is the last head."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append(head(features(output)))
        if last:
            raise _Reached

    return hook
