"""Which tensors cross between server and clients in a phase, by name: of the model, and beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from progfed.blocks import Progressive, state
from progfed.codec import Schema, schema_of
from progfed.errors import UsageError
from progfed.recipe.method import Method
from progfed.schedule import Phase
from progfed.tensors import part

_NAME = re.compile(r"[a-z]\w*/.+")


@dataclass(frozen=True)
class Travel:
    """Names and shapes of what crosses in a phase.

    Args:
        down: The message to a client: the model without what is private, and what travels beside it.
        up: The message back: what the phase trains without what is private, and what travels beside it.
        trained: The parameters in `up`.
        private: The names of the phase that never leave a client.
    """

    down: Schema
    up: Schema
    trained: Schema
    private: frozenset[str]


def travel(model: Progressive, phase: Phase, method: Method, module: nn.Module) -> Travel:
    """What crosses in a phase; `module` is its module, or one of shapes only."""
    schema, parts = schema_of(state(module)), set(model.trained(phase))
    private = frozenset(name for name in schema if method.private(name))
    shared = {name: shape for name, shape in schema.items() if name not in private}
    back = {name: shape for name, shape in shared.items() if part(name) in parts}
    learning = {name for name, _ in module.named_parameters()}
    trained = {name: shape for name, shape in back.items() if name in learning}
    if private and not trained:
        raise UsageError(
            f"with {method!r:.60} nothing that clients train in stage {phase.stage} of {model.name} is sent to the "
            "server, so they learn nothing from each other: keep less to themselves"
        )
    down, up = _checked(method, method.down(trained)), _checked(method, method.up(trained))
    return Travel(_sorted(shared | down), _sorted(back | up), trained, private)


def _checked(method: Method, schema: Schema) -> Schema:
    for name in schema:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{type(method).__name__} lets {name!r} travel: name it by a slot with a small first letter and a "
                "name, such as 'c/E1.weight'"
            )
    return schema


def _sorted(schema: Schema) -> Schema:
    return {name: tuple(schema[name]) for name in sorted(schema)}
