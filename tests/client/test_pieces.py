"""Batches in pieces: the steps of whole batches, for less memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.costs.devices import pieces_for
from progfed.costs.memory import in_pieces, phase_memory
from progfed.data.validation import held_out
from progfed.devices import Device
from progfed.engines.local import LocalEngine
from progfed.errors import DataError, UsageError
from progfed.models.convnet import convnet_cifar
from progfed.population import FederatedData
from progfed.recipe.recipe import Local
from progfed.runs.identity import identity
from progfed.schedule import Phase, in_turns, progressive
from progfed.server.loop import federate
from progfed.tensors import Tensors
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

CALM = replace(
    tiny_model(),  # without dropout, whose draws are other ones in pieces
    blocks=(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()), lambda: nn.Linear(5, 5), lambda: nn.Linear(5, 4)),
)


def trained(pieces: Sequence[int], local: Local, *, deepest: Sequence[int] = (), model: Progressive = CALM) -> Tensors:
    """The model after some rounds; with `deepest`, in turns."""
    schedule = progressive(4, stages=3)
    recipe = tiny_recipe(local=local, schedule=in_turns(schedule) if deepest else schedule)
    data = replace(tiny_data(), pieces=pieces, deepest=deepest)
    with LocalEngine(model, data, recipe) as engine:
        return list(federate(model, data.sizes, recipe, engine, deepest=deepest))[-1].progress.params


def close(one: Tensors, other: Tensors) -> bool:
    return all(torch.allclose(value, other[name], rtol=1e-4, atol=1e-6) for name, value in one.items())


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch=4, momentum=0.9, weight_decay=1e-3),
        Local(epochs=2, batch=4, clip=0.1, prox=0.1, accumulate=2),
        Local(batch=4, optimizer=partial(torch.optim.Adam, eps=1e-2)),
    ],
    ids=["momentum", "clipping, a pull and several batches a step", "an optimizer of torch"],
)
@pytest.mark.parametrize("deepest", [(), (1, 3, 2, 1, 3, 3)], ids=["at once", "in turns"])
def test_steps_in_pieces_are_those_of_whole_batches(local: Local, deepest: Sequence[int]) -> None:
    whole, cut = trained((), local, deepest=deepest), trained((1, 3, 2, 3, 4, 9), local, deepest=deepest)
    assert close(cut, whole)
    assert not close(cut, trained((), replace(local, batch=2), deepest=deepest))


def test_pieces_as_large_as_a_batch_change_no_bit() -> None:
    local = Local(epochs=2, batch=4, momentum=0.9)
    whole, cut = trained((), local), trained((4, 5, 6, 7, 8, 9), local)
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def test_a_device_is_given_the_largest_pieces_that_it_holds_to_the_byte() -> None:
    model, local = convnet_cifar(), Local(batch=20, momentum=0.9)
    needed = phase_memory(model, Phase(4, 1), in_pieces(local, 7)).peak
    whole = phase_memory(model, Phase(4, 1), local).peak
    devices = [Device(memory=memory) for memory in (needed, needed - 1, whole, whole - 1)]
    found = pieces_for(model, devices, local)
    assert found[:3] == (7, 6, 20)
    assert found[3] == 18  # 19 would need the gradients of two pieces beside almost as many activations
    assert pieces_for(model, devices[:1], local, deepest=(1,)) > (7,)


def test_a_device_that_cannot_hold_one_example_is_named_in_one_sentence() -> None:
    with pytest.raises(DataError, match=r"client 1 has 0\.0001 MB and needs .* MB to train on one example at a time"):
        pieces_for(tiny_model(), [Device(memory="1MB"), Device(memory=100)], Local(batch=4))


@pytest.mark.parametrize("pieces", [(1, 2), (1, 2, 0, 1, 1, 1)])
def test_pieces_that_do_not_fit_the_population_are_refused(pieces: Sequence[int]) -> None:
    with pytest.raises(DataError, match="pieces are 1 or more examples for each of 6 clients"):
        replace(tiny_data(), pieces=pieces)


def batch_norm() -> Any:
    return replace(CALM, blocks=(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), *CALM.blocks[1:]))


def test_where_a_step_would_be_another_one_pieces_are_refused() -> None:
    with pytest.raises(UsageError, match="batch normalisation of a piece"):
        trained((2,) * 6, Local(batch=4), model=batch_norm())
    with pytest.raises(UsageError, match="skip_above looks at the loss of a whole batch"):
        trained((2,) * 6, Local(batch=4, skip_above=10.0))


def test_pieces_are_part_of_what_an_experiment_is_and_stay_with_their_clients(tmp_path: Path) -> None:
    data = replace(tiny_data(), pieces=(1, 2, 3, 4, 5, 6))
    assert identity(tiny_experiment(data=data)) != identity(tiny_experiment(data=tiny_data()))
    assert held_out(data).pieces == data.pieces
    assert data.only((4, 0)).pieces == (5, 1)
    assert held_out(data, 0.5, clients=True).pieces == tuple(
        data.pieces[client] for client in range(6) if client in kept(data)
    )


def kept(data: FederatedData) -> set[int]:
    """The clients that stay when half of them are held out."""
    stay = held_out(data, 0.5, clients=True)
    return {client for client in range(6) if data.sizes[client] in stay.sizes}


def test_some_of_the_clients_are_a_population_with_what_is_known_of_them() -> None:
    data = replace(tiny_data(), deepest=(1, 3, 2, 1, 3, 3), own_tests=tiny_data().load)
    some = data.only((4, 0))
    assert (some.sizes, some.deepest, some.pieces) == ((9, 5), (3, 1), ())
    held, own = some.client(0), some.client_test(0)
    assert own is not None
    assert torch.equal(held.take(slice(None)).inputs, own.take(slice(None)).inputs)
    assert torch.equal(some.test_examples().take(slice(None)).inputs, data.test_examples().take(slice(None)).inputs)
    with pytest.raises(DataError, match=r"\(4, 6\) are not some of its clients 0 to 5"):
        data.only((4, 6))
