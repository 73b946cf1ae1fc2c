"""What a method has in its hands: what learns, what is added to gradients, what is kept and sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from progfed import Local, LocalEngine, Method, Visit, federate
from progfed.codec import Schema
from progfed.errors import TrainingError, UsageError
from progfed.schedule import end_to_end
from progfed.server.loop import Round
from progfed.wire.engine import ClientState
from tiny import tiny_data, tiny_model, tiny_recipe


@dataclass(frozen=True)
class Doing(Method):
    """A method whose client does what a test says."""

    do: Callable[[Visit], Any]
    travels: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def train(self, visit: Visit) -> None:
        self.do(visit)

    def up(self, trained: Schema) -> Schema:
        return self.travels


def trained(do: Callable[[Visit], Any], rounds: int = 2, **changes: Any) -> tuple[list[Round], dict[int, ClientState]]:
    travels = changes.pop("travels", {})
    recipe = tiny_recipe(**{"schedule": end_to_end(rounds, stages=3), "method": Doing(do, travels), **changes})
    with LocalEngine(tiny_model(), tiny_data(), recipe) as engine:
        return list(federate(tiny_model(), tiny_data().sizes, recipe, engine)), engine.client_states


def plain(**changes: Any) -> list[Round]:
    recipe = tiny_recipe(**{"schedule": end_to_end(2, stages=3), **changes})
    with LocalEngine(tiny_model(), tiny_data(), recipe) as engine:
        return list(federate(tiny_model(), tiny_data().sizes, recipe, engine))


def same(one: list[Round], other: list[Round]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        a.loss == b.loss and all(torch.equal(v, b.progress.params[n]) for n, v in a.progress.params.items())
        for a, b in pairs
    )


def looped(visit: Visit) -> None:
    for batch in visit.batches():
        visit.learn(batch)


@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "keep_momentum": True}, {"accumulate": 3}, {"steps": 1}])
def test_a_loop_of_ones_own_gives_the_bits_of_run(local: dict[str, Any]) -> None:
    settings = {"local": Local(epochs=2, batch=4, **local)}
    assert same(trained(looped, **settings)[0], plain(**settings))


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_a_pull_towards_the_start_is_fedprox(optimizer: Any) -> None:
    local = Local(epochs=2, batch=4, optimizer=optimizer, clip=None)
    pulled, _ = trained(
        lambda visit: visit.run(pull=lambda now: {n: 0.3 * (p - visit.start[n]) for n, p in now.items()}), local=local
    )
    expected = plain(local=Local(epochs=2, batch=4, optimizer=optimizer, clip=None, prox=0.3))
    for name, value in pulled[-1].progress.params.items():
        torch.testing.assert_close(value, expected[-1].progress.params[name], rtol=1e-4, atol=1e-6)


def test_only_what_is_chosen_learns_and_the_rest_needs_no_gradient() -> None:
    seen = []

    def first_block(visit: Visit) -> None:
        visit.run(only=lambda name: name.startswith("E1"))
        seen.append({name for name, value in visit.change().items() if value.any()})
        visit.run(only=lambda name: name.startswith("G3"))
        assert all(p.requires_grad for p in visit.params.values())

    done, _ = trained(first_block)
    assert all(names == {"E1.0.weight", "E1.0.bias"} for names in seen)
    start = tiny_model().init("E2", seed=tiny_recipe().seed)
    assert all(torch.equal(done[-1].progress.params[name], value) for name, value in start.items())
    with pytest.raises(UsageError, match="leaves nothing that learns"):
        trained(lambda visit: visit.run(only=lambda name: False))


def test_steps_are_counted_as_they_are_taken() -> None:
    counts = []

    def twice(visit: Visit) -> None:
        visit.run()
        counts.append(visit.steps)
        visit.run()
        counts.append(visit.steps - counts[-1])

    trained(twice, rounds=1, local=Local(epochs=1, batch=4))
    assert counts == [n for client in tiny_recipe().draw(6, 1) for n in [-(-(5 + client) // 4)] * 2]


def test_what_is_kept_comes_back_and_names_of_ones_own_stay() -> None:
    def counting(visit: Visit) -> None:
        visit.run()
        before = visit.kept("memory").get("visits", torch.zeros(()))
        visit.keep("memory", {"visits": before + 1})
        visit.keep("memory", {"E1.0.bias": visit.change()["E1.0.bias"]})

    _, states = trained(counting, rounds=6, cohort=6)
    assert [float(states[client]["memory"]["visits"]) for client in range(6)] == [6.0] * 6


@pytest.mark.parametrize("slot", ["held", "lost", "velocity", "private", "a/b"])
def test_names_that_mean_something_else_cannot_be_kept(slot: str) -> None:
    with pytest.raises(UsageError, match="cannot keep tensors under"):
        trained(lambda visit: visit.keep(slot, {"x": torch.zeros(1)}))


@pytest.mark.parametrize(
    ("shape", "told"),
    [((3,), r"sends note/x as \(3,\) where its `up` says \(2,\)"), (None, "sends note/x as nothing")],
)
def test_what_is_sent_must_be_what_was_announced(shape: tuple[int, ...] | None, told: str) -> None:
    def sending(visit: Visit) -> None:
        visit.run()
        if shape is not None:
            visit.send("note", {"x": torch.zeros(shape)})

    with pytest.raises(UsageError, match=told):
        trained(sending, travels={"note/x": (2,)})


def test_a_name_without_a_slot_cannot_travel() -> None:
    with pytest.raises(UsageError, match=r"lets 'E1\.weight' travel"):
        trained(lambda visit: visit.run(), travels={"E1.weight": (2,)})


def test_what_is_not_finite_is_refused_and_the_client_keeps_what_it_had() -> None:
    def sometimes(visit: Visit) -> None:
        visit.run()
        before = visit.kept("memory").get("visits", torch.zeros(()))
        visit.keep(
            "memory", {"visits": before + 1 if visit.client != 2 or visit.round < 3 else torch.tensor(torch.nan)}
        )

    done, states = trained(sometimes, rounds=4, cohort=6)
    assert [one.rejected for one in done] == [{}, {}, {"not finite": 1}, {"not finite": 1}]
    assert float(states[2]["memory"]["visits"]) == 2
    assert float(states[3]["memory"]["visits"]) == 4


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises((UsageError, TrainingError), match="a tensor of one number"):
        trained(lambda visit: visit.run(loss=lambda outputs, targets: outputs))
