"""Assigns every tensor of a model to a part of the progressive one, and knows the names to go back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from progfed.blocks import Make
from progfed.errors import UsageError
from progfed.split.cuts import Names
from progfed.split.parts import Held, Part, Skeleton
from progfed.split.trace import copied
from progfed.wire.message import model_digest


@dataclass(frozen=True)
class Assembly:
    """The tensors of each part, the skeleton that runs them, and for each name in the model its name in the parts."""

    held: dict[str, list[Held]]
    skeleton: Skeleton
    origin: dict[str, str]
    tied: Names

    def make(self, part: str) -> Make:
        """A function that makes a part."""
        held = self.held.get(part, [])
        return lambda: Part(held)

    @property
    def frozen(self) -> str:
        """A digest of the parameters that the user has frozen, names and bits; empty where there are none."""
        items = sorted((item for held in self.held.values() for item in held if item.frozen), key=lambda i: i.name)
        return model_digest({item.name: item.value for item in items}).hex() if items else ""

    def embedding(self, classes: int, width: int) -> str:
        """The name of the embedding in E_1 with which the model itself scores its classes; empty if there is none."""
        shapes = {item.name: tuple(item.value.shape) for item in self.held.get("E1", [])}
        return next((name for name, shape in shapes.items() if name in self.tied and shape == (classes, width)), "")


def assemble(model: nn.Module, learns: Names, part: Callable[[str], str]) -> Assembly:
    """Assign all parameters and buffers to parts; a tensor with several names is kept once, under the first."""
    first: dict[int, str] = {}
    homes: dict[str, tuple[str, str]] = {}
    held: dict[str, list[Held]] = {}
    for name, value, buffer, persistent in _tensors(model):
        own = first.setdefault(id(value), name)
        if own == name:
            home = part(name)
            learning = name in learns and value.requires_grad
            item = Held(
                name,
                value.detach().cpu().clone(),
                learns=learning,
                frozen=not buffer and not value.requires_grad,
                buffer=buffer,
                persistent=persistent,
            )
            held.setdefault(home, []).append(item)
            homes[name] = home, name
        else:
            homes[name] = homes[own]
    strangers = [name for name in model.state_dict() if name not in homes]
    if strangers:
        raise UsageError(
            f"the model's state_dict has entries that are no parameters or buffers ({strangers[0]}): "
            f"weights could not go back into it, so it cannot be split"
        )
    origin = {name: ".".join(homes[name]) for name in model.state_dict()}
    uses = Counter(home for home in homes.values())
    tied = frozenset(name for (_, name), number in uses.items() if number > 1)
    return Assembly(held, Skeleton(copied(model), homes), origin, tied)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool, bool]]:
    """All tensors under all their names, with whether each is a buffer and whether a `state_dict` keeps it."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter, False, True
    for name, buffer in model.named_buffers(remove_duplicate=False):
        path, _, leaf = name.rpartition(".")
        yield name, buffer, True, leaf not in model.get_submodule(path)._non_persistent_buffers_set
