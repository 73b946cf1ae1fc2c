"""U-Nets: a short description of their levels, and the two ways they grow (Sec. 3.1, Extension to U-nets)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from progfed.errors import UsageError
from progfed.split.cuts import Cut
from progfed.split.layout import Layout
from progfed.split.parts import Skeleton
from progfed.split.trace import Trace


@dataclass(frozen=True, kw_only=True)
class UNet:
    """The modules of a U-Net by name, so that `split` knows its levels.

    Args:
        encoders: From the outermost level inwards.
        bottleneck: The innermost level.
        decoders: From the innermost level outwards.
        head: The layer that makes the output.
        ups: `ups[i]` is the upsampling before `decoders[i]`; empty where the forward upsamples without weights.
        growth: `"symmetric"` starts with the outermost encoder and decoder, and the output of levels that are not there
            yet is zero; `"asymmetric"` starts with all encoders and grows by decoders, with temporary heads.
    """

    encoders: Sequence[str]
    bottleneck: str
    decoders: Sequence[str]
    head: str
    ups: Sequence[str] = ()
    growth: Literal["symmetric", "asymmetric"] = "symmetric"

    @property
    def _levels(self) -> list[tuple[str, ...]]:
        """The modules of each level, the outermost first: its encoder, its decoder, and the way outwards."""
        ups = [(), *((name,) for name in reversed(self.ups))] if self.ups else [()] * (len(self.encoders) + 1)
        inner = [(self.bottleneck,)]
        pairs = [*zip(self.encoders, reversed(self.decoders), strict=True), *inner]
        return [(*pair, *up) for pair, up in zip(pairs, ups, strict=True)]

    def blocks(self, stages: int) -> list[tuple[str, ...]]:
        """The modules of E_1..E_S: one level or decoder for each block, the rest for the last."""
        if self.growth == "symmetric":
            units, first = self._levels, []
        else:
            units, first = [(name,) for name in self.decoders], [(*self.encoders, self.bottleneck)]
        number = stages - len(first)
        if not 1 <= number <= len(units):
            least, most = 1 + len(first), len(units) + len(first)
            raise UsageError(
                f"this U-Net of {len(self.encoders) + 1} levels has {least} to {most} stages in {self.growth} growth, "
                f"not {stages}"
            )
        rest = tuple(name for unit in units[number - 1 :] for name in unit)
        return [*first, *units[: number - 1], rest]

    def check(self, trace: Trace, modules: Sequence[str]) -> None:
        """Refuse a description that does not fit the model."""
        if self.growth not in ("symmetric", "asymmetric"):
            raise UsageError(f"growth is {self.growth!r}, but a U-Net grows 'symmetric' or 'asymmetric'")
        if (
            not self.encoders
            or len(self.decoders) != len(self.encoders)
            or len(self.ups) not in (0, len(self.encoders))
        ):
            raise UsageError(
                f"a U-Net has as many decoders (and ups, or none) as encoders: found {len(self.encoders)} encoders, "
                f"{len(self.decoders)} decoders and {len(self.ups)} ups"
            )
        for name in (*self.encoders, self.bottleneck, *self.decoders, *self.ups, self.head):
            if name not in modules:
                raise UsageError(f"the model has no module {name!r}, which the description of its U-Net names")
            if name not in trace.calls or trace.calls[name].times != 1:
                times = trace.calls[name].times if name in trace.calls else 0
                raise UsageError(f"a part of a U-Net is called once in a forward, but {name!r} {times} times")

    def exits(self, trace: Trace, stages: int) -> Layout:
        """The layout of asymmetric growth: blocks end with the bottleneck or a decoder, whatever skips past them."""
        ends = [block[-1] for block in self.blocks(stages)[:-1]]
        calls = [trace.calls[name] for name in ends]
        for name, seen in zip(ends, calls, strict=True):
            if seen.node is None:
                raise UsageError(
                    f"{name!r} returns {seen.returned}: a temporary head needs one tensor, or the first of a tuple"
                )
        cuts = tuple(
            Cut(name, trace.names(trace.reach(seen.node)), seen) for name, seen in zip(ends, calls, strict=True)
        )
        return Layout(cuts, frozenset(name for name in trace.trained if under(name, (self.head,))))

    def part(self, name: str, blocks: Sequence[Sequence[str]]) -> str:
        """Symmetric growth: the part that a tensor belongs to."""
        if under(name, (self.head,)):
            return "G"
        for number, modules in enumerate(blocks, start=1):
            if under(name, modules):
                return f"E{number}"
        raise UsageError(
            f"{name} belongs to no module that the description of the U-Net names: add it to a level or the head"
        )


def under(name: str, modules: Sequence[str]) -> bool:
    """Whether a tensor belongs to one of these modules or to a module inside it."""
    return any(name.startswith(f"{module}.") for module in modules)


@dataclass(frozen=True, eq=False)
class Nested:
    """The wiring of symmetric growth: the model's own forward, in which missing modules return zeros.

    The shape that they would return is computed once for each shape of input, without computing any number.
    """

    skeleton: Skeleton
    blocks: Sequence[Sequence[str]]
    _shapes: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, blocks: Sequence[nn.Module], heads: Mapping[int, nn.Module], inputs: Any) -> list[Tensor]:
        parts = {f"E{depth}": block for depth, block in enumerate(blocks, start=1)} | {"G": next(iter(heads.values()))}
        with ExitStack() as stack:
            for name in (name for modules in self.blocks[len(blocks) :] for name in modules):
                stack.enter_context(_replaced(self.skeleton.model.get_submodule(name), self._absent(name)))
            return [self.skeleton.run(parts, inputs, training=blocks[0].training)]

    def _absent(self, name: str) -> Callable[..., Any]:
        module = self.skeleton.model.get_submodule(name)
        own = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            batch, device = tensors[0].shape[0], tensors[0].device
            key = name, tuple(tuple(leaf.shape[1:]) for leaf in tensors)
            if key not in self._shapes:
                args, kwargs = tree_map_only(Tensor, lambda leaf: leaf.to("meta"), (args, kwargs))
                with torch.no_grad():
                    self._shapes[key] = own(*args, **kwargs)
            return tree_map_only(
                Tensor,
                lambda leaf: torch.zeros((batch, *leaf.shape[1:]), dtype=leaf.dtype, device=device),
                self._shapes[key],
            )

        return forward


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Give a module another forward while the block runs."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
