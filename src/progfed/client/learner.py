"""Local training: a task comes in, an update goes out. Every engine runs this same code."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.client.batches import Ahead, Batches
from progfed.client.replica import Replica, total_loss
from progfed.client.sgd import Sgd
from progfed.client.torch_optimizer import stepper
from progfed.codec import Float, feedback
from progfed.errors import DataError, MessageError, ProgfedError, TrainingError, UsageError
from progfed.population import Examples, FederatedData, Fetched, Held, misfit, not_finite
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, of_parts
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.message import ASK, CHANGE, DOWN, UP, Envelope, kind_of, model_digest, seal, seal_body, unseal


class Learner:
    """One replica of the model, which trains for one client after the other.

    It keeps the module of the running phase and the last model it decoded, so that a round costs one decoding
    per replica and not one per client. What a client remembers goes in and comes out with its task.
    """

    def __init__(
        self, model: Progressive, data: FederatedData, recipe: Recipe, run_id: str, *, device: str = "cpu"
    ) -> None:
        self._model, self._data, self._run_id, self._device = model, data, run_id, device
        self._recipe = with_exact_buffers(recipe, model)
        self._phase: Phase | None = None
        self._source: tuple[bytes, bytes] = b"", b""

    def __call__(self, task: Task, remembered: ClientState) -> tuple[Update, ClientState]:
        """Train on the client's own examples from the model in the task; return what changed, and what to remember.

        A client that does not hold the model that a change starts from asks for a whole one instead.
        """
        if task.phase != self._phase:
            self._replica, self._phase = Replica(self._model, task.phase, self._device), task.phase
            self._takes_one: bool | None = None
            self._start: Tensors = {}
        if not self._receive(task, remembered):
            envelope = Envelope(ASK, self._run_id, task.round, task.phase.stage, task.client)
            return Update(task.client, seal(envelope, {}, Float(), 0)), remembered
        self._replica.load(self._there)
        examples = self._data.client(task.client)
        with rng.default(self._recipe.seed, "dropout", task.round, task.client):
            loss, velocity = self._train(task, examples, remembered)
        change, number = self._replica.change(self._there), examples.number
        if change is not None and math.isfinite(loss):
            with suppress(MessageError):  # the codec cannot hold such numbers
                message, kept = self._reply(task, change, number, loss, remembered)
                return Update(task.client, message), kept | ({"velocity": velocity} if velocity else {})
        if wrong := not_finite(examples):  # looked for only now: a model may well take such numbers
            raise DataError(f"{self._named(task)} has {wrong}, and training on them fails: mend or remove them")
        message, kept = self._refused(task, number, remembered)
        return Update(task.client, message), kept | {key: remembered[key] for key in ("velocity",) if key in remembered}

    def _receive(self, task: Task, remembered: ClientState) -> bool:
        """Decode the model in the task, unless the client before got the same; False where it cannot be decoded."""
        expected = Envelope(DOWN, self._run_id, task.round, task.phase.stage)
        kind, base, codec = kind_of(task.message), dict[str, Tensor](), self._recipe.down
        if kind == CHANGE:
            base = hold(remembered.get("held", {}), self._model, task.phase, seed=self._recipe.seed)
            expected = replace(expected, kind=CHANGE, base=model_digest(base))
        elif self._recipe.base == "start":
            base = self._initial(task.phase)
            expected = replace(expected, base=self._initial_digest)
        elif self._recipe.delta:
            codec = Float()
        source = task.message, expected.base
        if source[0] is self._source[0] and source[1] == self._source[1]:
            return True
        try:
            _, tensors = unseal(task.message, expected, self._replica.schema, codec)
        except MessageError as error:
            if error.reason == "base" and kind == CHANGE:
                return False
            raise TrainingError(
                f"client {task.client}, round {task.round}: the model that it was sent cannot be used ({error}): "
                "are server and client of the same version, and of the same experiment?"
            ) from error
        self._received = add(base, tensors) if base else tensors
        self._there = {name: value.to(self._device) for name, value in self._received.items()}
        self._source = source
        return True

    def _initial(self, phase: Phase) -> Tensors:
        """The initial parameters of a phase, which are made once for all its clients."""
        if not self._start:
            self._start = hold({}, self._model, phase, seed=self._recipe.seed)
            self._initial_digest = model_digest(self._start)
        return self._start

    def _reply(
        self, task: Task, change: Tensors, examples: int, loss: float, remembered: ClientState
    ) -> tuple[bytes, ClientState]:
        """The update as a message, and what this client keeps for the next round."""
        recipe = self._recipe
        envelope = Envelope(UP, self._run_id, task.round, task.phase.stage, task.client, examples, loss)
        key = rng.number(recipe.seed, "up", task.round, task.client)
        kept: ClientState = {"held": self._received} if recipe.delta else {}
        if not recipe.feedback:
            return seal_body(envelope, self._replica.trained, recipe.up, recipe.up.encode(change, key)), kept
        before = of_parts(remembered.get("lost", {}), self._model.parts(task.phase))
        body, lost = feedback(recipe.up, change, before, key)
        return seal_body(envelope, self._replica.trained, recipe.up, body), {**kept, "lost": {**before, **lost}}

    def _refused(self, task: Task, examples: int, remembered: ClientState) -> tuple[bytes, ClientState]:
        """A reply without a change, whose loss the server refuses; `lost` goes into it if the codec can hold it."""
        nothing = {name: torch.zeros(shape) for name, shape in self._replica.trained.items()}
        try:
            return self._reply(task, nothing, examples, math.nan, remembered)
        except MessageError:
            return self._reply(task, nothing, examples, math.nan, {})

    def _train(self, task: Task, examples: Held, remembered: ClientState) -> tuple[float, Tensors]:
        """Training over the client's examples; returns the mean loss, and the momentum where it is kept."""
        step = stepper(self._replica.learning, self._recipe.local, task.lr)
        kept = of_parts(remembered.get("velocity", {}), self._model.parts(task.phase))
        if kept and isinstance(step, Sgd):
            step.resume([kept.get(name) for name in self._replica.names])
        if self._replica.draws_at_random:
            self._replica.draws.generator = rng.generator(self._recipe.seed, "masks", task.round, task.client)
        batches = Ahead(self._batches(task)(examples))
        take = batches.beside(step) if isinstance(examples, Fetched) and examples.ahead else step
        least = min(2, examples.number, self._recipe.local.batch)
        losses = [
            (self._step(batch, take, task), len(batch.targets))
            for batch in batches
            if len(batch.targets) >= least or self._learns_from_one(batch.inputs)
        ]
        step.finish()
        # looked at only now: on a GPU each look would wait for the step before it
        total = sum(float(loss) * number for loss, number in losses)
        loss = total / max(1, sum(number for _, number in losses))
        if not self._recipe.local.keep_momentum or not isinstance(step, Sgd):
            return loss, {}
        now = {name: value.cpu().contiguous() for name, value in zip(self._replica.names, step.velocity, strict=False)}
        return loss, kept | now

    def _batches(self, task: Task) -> Batches:
        return Batches(
            local=self._recipe.local,
            augment=self._data.augment,
            device=self._device,
            seed=self._recipe.seed,
            round=task.round,
            client=task.client,
        )

    def _learns_from_one(self, inputs: Any) -> bool:
        """Whether the module can train on a batch of one example: batch normalisation may need two.

        It is tried once a phase, and leaves neither statistics nor generators changed.
        """
        if self._takes_one is None:
            module, drawn = self._replica.module, self._replica.draws.generator
            statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
            before = drawn.get_state() if drawn is not None else None
            self._takes_one = True
            try:
                with torch.no_grad(), rng.default(0, "trial"):
                    module(inputs)
            except ValueError as error:
                self._takes_one = "more than 1 value per channel" not in str(error)
            finally:
                for buffer, value in statistics:
                    buffer.copy_(value)
                if drawn is not None and before is not None:
                    drawn.set_state(before)
        return self._takes_one

    def _step(self, batch: Examples, step: Callable[[Tensor], None], task: Task) -> Tensor:
        """Forward, backward and a step of the optimizer, unless the loss forbids it; returns the loss."""
        local, outputs = self._recipe.local, None
        try:
            outputs = self._replica.module(batch.inputs)
            loss = total_loss(local.loss, outputs, batch.targets)
        except ProgfedError:
            raise
        except Exception as error:
            raise misfit(error, batch, self._model.example, self._named(task), outputs=outputs) from error
        if not isinstance(loss, Tensor) or loss.dim():
            found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(f"the loss gives {found} where training needs a tensor of one number: return the mean")
        if local.skip_above == math.inf or loss < local.skip_above:  # who has no limit does not wait for the number
            step(loss)
        return loss.detach()

    def _named(self, task: Task) -> str:
        return f"{self._data.name}: client {task.client}"
