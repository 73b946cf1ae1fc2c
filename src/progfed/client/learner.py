"""Local training: a task comes in, an update goes out. Every engine runs this same code."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.client.batches import Batches
from progfed.client.replica import Replica
from progfed.client.visit import ClientVisit, Place, check_pieces
from progfed.codec import Float, feedback
from progfed.errors import DataError, MessageError, TrainingError, UsageError
from progfed.population import FederatedData, Held, not_finite
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase, Schedule
from progfed.tensors import Tensors, add, aside, grouped, of_parts
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
            self._enter(task.phase)
        if not self._receive(task, remembered):
            envelope = Envelope(ASK, self._run_id, task.round, task.phase.stage, task.client)
            return Update(task.client, seal(envelope, {}, Float(), 0)), remembered
        start = self._there | self._own(remembered)
        self._replica.load(start)
        examples = self._data.client(task.client)
        visit = self._visit(task, examples, start, remembered)
        with rng.default(self._recipe.seed, "dropout", task.round, task.client):
            self._recipe.method.train(visit)
        visit.finish()
        loss, number = visit.mean_loss(), examples.number
        change, kept = self._replica.change(start), visit.state() | self._private(remembered)
        if change is not None and math.isfinite(loss) and visit.sound:
            with suppress(MessageError):  # the codec cannot hold such numbers
                message, held = self._reply(task, change | self._beside(visit), number, loss, remembered)
                return Update(task.client, message), held | kept
        if wrong := not_finite(examples):  # looked for only now: a model may well take such numbers
            raise DataError(f"{self._named(task)} has {wrong}, and training on them fails: mend or remove them")
        message, held = self._refused(task, number, remembered)
        before = {kind: tensors for kind, tensors in remembered.items() if kind not in ("held", "lost")}
        return Update(task.client, message), held | before

    def _enter(self, phase: Phase) -> None:
        """Make the module of a phase, and what is the same for all its clients."""
        recipe = self._recipe
        self._replica, self._phase = Replica(self._model, phase, self._device, recipe.method), phase
        if len(self._data.pieces):
            check_pieces(self._replica.module, recipe.local)
        self._takes_one: bool | None = None
        self._start: Tensors = {}
        coming = _from(phase, recipe.schedule)
        self._place = Place(
            module=self._replica.module,
            params=self._replica.params,
            trained=self._replica.trained,
            turns=self._replica.turns,
            parts=frozenset(self._model.parts(phase)),
            lasting=frozenset(name for later in (phase, *coming) for name in self._model.parts(later)),
            local=recipe.local,
            device=self._device,
            example=self._model.example,
        )

    def _receive(self, task: Task, remembered: ClientState) -> bool:
        """Decode the model in the task, unless the client before got the same; False where it cannot be decoded."""
        recipe = self._recipe.with_bits(task.bits)
        expected = Envelope(DOWN, self._run_id, task.round, task.phase.stage)
        kind, base, codec = kind_of(task.message), dict[str, Tensor](), recipe.downward
        if kind == CHANGE:
            base = self._shared(hold(remembered.get("held", {}), self._model, task.phase, seed=recipe.seed))
            expected = replace(expected, kind=CHANGE, base=model_digest(base))
        elif recipe.base == "start":
            base = self._shared(self._initial(task.phase))
            expected = replace(expected, base=self._initial_digest)
        elif recipe.delta:
            codec = recipe.with_method(Float())
        source = task.message, expected.base
        if source[0] is self._source[0] and source[1] == self._source[1]:
            return True
        try:
            _, tensors = unseal(task.message, expected, self._replica.down, codec)
        except MessageError as error:
            if error.reason == "base" and kind == CHANGE:
                return False
            raise TrainingError(
                f"client {task.client}, round {task.round}: the model that it was sent cannot be used ({error}): "
                "are server and client of the same version, and of the same experiment?"
            ) from error
        beside = {name: tensors.pop(name).to(self._device) for name in list(tensors) if aside(name)}
        self._received, self._sent = add(base, tensors) if base else tensors, grouped(beside)
        self._there = {name: value.to(self._device) for name, value in self._received.items()}
        self._source = source
        return True

    def _initial(self, phase: Phase) -> Tensors:
        """The initial parameters of a phase, which are made once for all its clients."""
        if not self._start:
            self._start = hold({}, self._model, phase, seed=self._recipe.seed)
            self._initial_digest = model_digest(self._shared(self._start))
        return self._start

    def _shared(self, tensors: Tensors) -> Tensors:
        """Those that are not private."""
        private = self._replica.private
        return {name: value for name, value in tensors.items() if name not in private} if private else tensors

    def _own(self, remembered: ClientState) -> Tensors:
        """The private tensors of a client: those that it has kept, and initial ones."""
        if not self._replica.private:
            return {}
        kept, fresh = remembered.get("private", {}), self._initial(self._replica.phase)
        return {name: kept.get(name, fresh[name]).to(self._device) for name in self._replica.private}

    def _private(self, remembered: ClientState) -> ClientState:
        """The private tensors that a client keeps: those of this phase, and those that a later one may need."""
        before = of_parts(remembered.get("private", {}), self._place.lasting)
        kept = before | self._replica.own()
        return {"private": kept} if kept else {}

    def _visit(self, task: Task, examples: Held, start: Tensors, remembered: ClientState) -> ClientVisit:
        key = (self._recipe.seed, "masks", task.round, task.client)
        if self._replica.draws_at_random:
            self._replica.draws.generator = rng.generator(*key)
        return ClientVisit(
            task,
            self._place,
            examples,
            self._batches(task),
            start=start,
            sent=self._sent,
            remembered=remembered,
            test=partial(self._data.client_test, task.client),
            takes_one=self._learns_from_one,
            named=self._named(task),
            piece=self._data.pieces[task.client] if len(self._data.pieces) else None,
        )

    def _beside(self, visit: ClientVisit) -> Tensors:
        """What the visit sends beside the update, as it was announced."""
        wanted = {name: shape for name, shape in self._replica.up.items() if aside(name)}
        found = {name: tuple(value.shape) for name, value in visit.beside.items()}
        if found != wanted:
            wrong = min(name for name in found.keys() | wanted if found.get(name) != wanted.get(name))
            raise UsageError(
                f"{type(self._recipe.method).__name__} sends {wrong} as {found.get(wrong, 'nothing')} where its `up` "
                f"says {wanted.get(wrong, 'nothing')}: make them agree"
            )
        return {name: value.float() for name, value in visit.beside.items()}

    def _reply(
        self, task: Task, change: Tensors, examples: int, loss: float, remembered: ClientState
    ) -> tuple[bytes, ClientState]:
        """The update as a message, and what this client keeps of model and codec for the next round."""
        recipe, schema = self._recipe.with_bits(task.bits), self._replica.up
        envelope = Envelope(UP, self._run_id, task.round, task.phase.stage, task.client, examples, loss)
        key = rng.number(recipe.seed, "up", task.round, task.client)
        kept: ClientState = {"held": self._received} if recipe.delta else {}
        if not recipe.feedback:
            return seal_body(envelope, schema, recipe.upward, recipe.upward.encode(change, key)), kept
        before = of_parts(remembered.get("lost", {}), self._model.parts(task.phase))
        body, lost = feedback(recipe.upward, change, before, key)
        lost = {name: value for name, value in lost.items() if not aside(name)}
        return seal_body(envelope, schema, recipe.upward, body), {**kept, "lost": {**before, **lost}}

    def _refused(self, task: Task, examples: int, remembered: ClientState) -> tuple[bytes, ClientState]:
        """A reply without a change, whose loss the server refuses; `lost` goes into it if the codec can hold it."""
        nothing = {name: torch.zeros(shape) for name, shape in self._replica.up.items()}
        try:
            return self._reply(task, nothing, examples, math.nan, remembered)
        except MessageError:
            return self._reply(task, nothing, examples, math.nan, {})

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

    def _named(self, task: Task) -> str:
        return f"{self._data.name}: client {task.client}"


def _from(phase: Phase, schedule: Schedule) -> Schedule:
    """The phases from the first one like this on; all of them where none is, as for a weak client."""
    alike = [place for place, one in enumerate(schedule) if (one.stage, one.trains) == (phase.stage, phase.trains)]
    return schedule[alike[0] :] if alike else schedule
