"""Local training: a task comes in, an update goes out. Every engine runs this same code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from progfed import rng
from progfed.blocks import Progressive, hold, load, state
from progfed.codec import Float, feedback, schema_of
from progfed.errors import MessageError
from progfed.examples import Examples, FederatedData
from progfed.protocol import (
    ASK,
    CHANGE,
    DOWN,
    UP,
    Envelope,
    Memory,
    Task,
    Update,
    kind_of,
    model_digest,
    seal,
    seal_body,
    unseal,
)
from progfed.recipe import Local, Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, finite, of_parts, sub, tree_map


class Learner:
    """One replica of the model, which trains for one client after the other.

    It keeps the module of the running phase and the last model it decoded, so that a round costs one decoding
    per replica and not one per client. What a client remembers goes in and comes out with its task.
    """

    def __init__(self, model: Progressive, data: FederatedData, recipe: Recipe, run: str) -> None:
        self._model, self._data, self._recipe, self._run = model, data, recipe, run
        self._phase: Phase | None = None
        self._source: tuple[bytes, bytes] = b"", b""

    def __call__(self, task: Task, memory: Memory) -> tuple[Update, Memory]:
        """Train on the client's own examples from the model in the task; return what changed, and what to remember.

        A client that does not hold the model that a change starts from asks for a whole one instead.
        """
        if task.phase != self._phase:
            self._module, self._phase = fast_layout(self._model.phase_module(task.phase)).train(), task.phase
        if not self._receive(task, memory):
            envelope = Envelope(ASK, self._run, task.round, task.phase.stage, task.client)
            return Update(task.client, seal(envelope, {}, Float(), 0)), memory
        load(self._module, self._received)
        examples = self._data.client(task.client)
        with rng.default(self._recipe.seed, "dropout", task.round, task.client):
            loss = self._train(task, examples)
        change = sub(of_parts(state(self._module), self._model.trained(task.phase)), self._received)
        if not (math.isfinite(loss) and finite(change)):  # codecs refuse such numbers: let the server see and count it
            loss, change = math.nan, {name: torch.zeros_like(value) for name, value in change.items()}
        message, memory = self._reply(task, change, examples.number, loss, memory)
        return Update(task.client, message), memory

    def _receive(self, task: Task, memory: Memory) -> bool:
        """Decode the model in the task, unless the client before got the same; False where it cannot be decoded."""
        expected = Envelope(DOWN, self._run, task.round, task.phase.stage)
        schema = schema_of(state(self._module))
        held: Tensors = {}
        if kind_of(task.message) == CHANGE:
            held = hold(memory.get("held", {}), self._model, task.phase, seed=self._recipe.seed)
            expected = replace(expected, kind=CHANGE, base=model_digest(held))
        source = task.message, expected.base
        if source[0] is self._source[0] and source[1] == self._source[1]:
            return True
        codec = Float() if self._recipe.delta and not held else self._recipe.down
        try:
            _, tensors = unseal(task.message, expected, schema, codec)
        except MessageError as error:
            if error.reason == "base":
                return False
            raise
        self._received = add(held, tensors) if held else tensors
        self._source = source
        return True

    def _reply(self, task: Task, change: Tensors, examples: int, loss: float, memory: Memory) -> tuple[bytes, Memory]:
        """The update as a message, and what this client keeps for the next round."""
        recipe = self._recipe
        envelope = Envelope(UP, self._run, task.round, task.phase.stage, task.client, examples, loss)
        key = rng.number(recipe.seed, "up", task.round, task.client)
        kept: Memory = {"held": self._received} if recipe.delta else {}
        if not recipe.feedback:
            return seal(envelope, change, recipe.up, key), kept
        before = of_parts(memory.get("lost", {}), self._model.parts(task.phase))
        body, lost = feedback(recipe.up, change, before, key)
        return seal_body(envelope, schema_of(change), recipe.up, body), {**kept, "lost": {**before, **lost}}

    def _train(self, task: Task, examples: Examples) -> float:
        """SGD over the client's examples; returns the mean loss."""
        local = self._recipe.local
        shuffle = rng.generator(self._recipe.seed, "shuffle", task.round, task.client)
        augmenting = rng.generator(self._recipe.seed, "augment", task.round, task.client)
        step = Sgd([p for p in self._module.parameters() if p.requires_grad], local, task.lr)
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(local.epochs):
            order = torch.randperm(examples.number, generator=shuffle)
            for index in torch.split(order, local.batch):
                batch = examples.take(index)
                if self._data.augment is not None:
                    batch = self._data.augment(batch, augmenting)
                loss = self._loss(self._module(fast_inputs(batch.inputs)), batch.targets)
                step(loss)
                total += loss.detach() * len(index)
        return float(total) / (examples.number * local.epochs)

    def _loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of the phase's head; the sum over heads where it uses several."""
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        losses = [self._recipe.local.loss(output, targets) for output in outputs]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


class Sgd:
    """SGD with weight decay, FedProx's pull towards the start, and momentum; otherwise `torch.optim.SGD` to the bit."""

    def __init__(self, parameters: list[Tensor], local: Local, lr: float) -> None:
        self._parameters, self._local, self._lr = parameters, local, lr
        self._start = [p.detach().clone() for p in parameters] if local.prox else []
        self._velocity: list[Tensor] = []

    def __call__(self, loss: Tensor) -> None:
        grads = list(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():
            if self._local.weight_decay:
                torch._foreach_add_(grads, self._parameters, alpha=self._local.weight_decay)
            if self._local.prox:
                torch._foreach_add_(grads, self._parameters, alpha=self._local.prox)
                torch._foreach_sub_(grads, self._start, alpha=self._local.prox)
            if self._local.momentum and self._velocity:
                torch._foreach_mul_(self._velocity, self._local.momentum)
                torch._foreach_add_(self._velocity, grads)
                grads = self._velocity
            elif self._local.momentum:
                self._velocity = grads
            torch._foreach_add_(self._parameters, grads, alpha=-self._lr)


def fast_layout(module: nn.Module) -> nn.Module:
    """Images last in channels: the same numbers by name, in the memory layout that convolutions run fastest in here."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def fast_inputs(inputs: Any) -> Any:
    """Inputs in the layout of `fast_layout`; only batches of images have one."""
    return tree_map(
        lambda leaf: leaf.contiguous(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf, inputs
    )
