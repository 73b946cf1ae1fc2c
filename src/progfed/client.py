"""Local training: a task comes in, an update goes out. Every engine runs this same code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from progfed import rng
from progfed.blocks import Progressive, load, state
from progfed.codec import schema_of
from progfed.examples import Examples, FederatedData
from progfed.protocol import DOWN, UP, Envelope, Task, Update, seal, unseal
from progfed.recipe import Local, Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, of_parts, sub, tree_map


class Learner:
    """One replica of the model, which trains for one client after the other.

    It keeps the module of the running phase and the last model it decoded, so that a round costs one decoding
    per replica and not one per client.
    """

    def __init__(self, model: Progressive, data: FederatedData, recipe: Recipe, run: str) -> None:
        self._model, self._data, self._recipe, self._run = model, data, recipe, run
        self._phase: Phase | None = None
        self._message = b""

    def __call__(self, task: Task) -> Update:
        """Train on the client's own examples from the model in the task, and return what changed."""
        self._prepare(task)
        load(self._module, self._received)
        examples = self._data.client(task.client)
        with rng.default(self._recipe.seed, "dropout", task.round, task.client):
            loss = self._train(task, examples)
        change = sub(of_parts(state(self._module), self._model.trained(task.phase)), self._received)
        envelope = Envelope(UP, self._run, task.round, task.phase.stage, task.client, examples.number, loss)
        key = rng.number(self._recipe.seed, "up", task.round, task.client)
        return Update(task.client, seal(envelope, change, self._recipe.up, key))

    def _prepare(self, task: Task) -> None:
        if task.phase != self._phase:
            self._module, self._phase = fast_layout(self._model.phase_module(task.phase)).train(), task.phase
        if task.message is not self._message:
            expected = Envelope(DOWN, self._run, task.round, task.phase.stage)
            _, received = unseal(task.message, expected, schema_of(state(self._module)), self._recipe.down)
            self._received: Tensors = received
            self._message = task.message

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
