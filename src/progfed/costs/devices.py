"""What training takes on a device: which sub-models fit into its memory, and how long rounds last there."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from progfed.blocks import Progressive
from progfed.codec import Codec
from progfed.costs import Costs
from progfed.costs.memory import in_pieces
from progfed.devices import Device
from progfed.errors import DataError
from progfed.recipe.recipe import Local, Recipe
from progfed.schedule import Phase, Schedule, within
from progfed.wire.message import message_size


def deepest_for(
    model: Progressive,
    devices: Sequence[Device],
    local: Local,
    *,
    schedule: Schedule = (),
    piece: int | None = None,
) -> tuple[int, ...]:
    """The deepest stage that each device has the memory to train, as `FederatedData(deepest=…)` takes it.

    Args:
        model: The model.
        devices: The device of each client, such as `data.devices`.
        local: How a client trains: its batch, momentum and loss are part of what training takes.
        schedule: What is trained. A device is given a depth where every phase of it, cut to that depth, fits; so one
            that freezes blocks lets weak devices go deeper. Empty: all of every sub-model is trained.
        piece: The fewest examples at once to which a batch may be cut, see `pieces_for`; None: batches are whole.
    """
    costs, cut = Costs(model), local if piece is None else in_pieces(local, piece)
    phases = schedule or tuple(Phase(stage, 1) for stage in range(1, model.stages + 1))
    needed = {
        depth: max(costs.memory(within(phase, depth), cut).peak for phase in phases)
        for depth in range(1, model.stages + 1)
    }
    if weak := [client for client, device in enumerate(devices) if device.memory < needed[1]]:
        first = devices[weak[0]].memory / 1e6
        raise DataError(
            f"{len(weak)} of {len(devices)} clients, the first is {weak[0]}, cannot train stage 1 of {model.name}: it "
            f"takes {needed[1] / 1e6:.3g} MB with batches of {cut.batch}, and that device has {first:.3g} MB: leave "
            "such clients out of the population, or use smaller batches"
        )
    deepest = {device: max(depth for depth, peak in needed.items() if peak <= device.memory) for device in set(devices)}
    return tuple(deepest[device] for device in devices)


def pieces_for(
    model: Progressive,
    devices: Sequence[Device],
    local: Local,
    *,
    schedule: Schedule = (),
    deepest: Sequence[int] = (),
) -> tuple[int, ...]:
    """The most examples of a batch that each device has the memory to train on at once, for `FederatedData(pieces=…)`.

    Args:
        model: The model.
        devices: The device of each client, such as `data.devices`.
        local: How a client trains: its batch, momentum and loss are part of what training takes.
        schedule: What is trained; empty: all of every sub-model.
        deepest: The deepest stage of each client; empty: that of the model.
    """
    costs = Costs(model)
    phases = schedule or tuple(Phase(stage, 1) for stage in range(1, model.stages + 1))
    depths = deepest or (model.stages,) * len(devices)

    def peak(piece: int, depth: int) -> int:
        return max(costs.memory(within(phase, depth), in_pieces(local, piece)).peak for phase in phases)

    def largest(memory: float, depth: int) -> int:
        # first the whole batch: it needs no gradients of pieces before, so it may fit where one example less does not
        if peak(local.batch, depth) <= memory:
            return local.batch
        return bisect_right(range(1, local.batch), memory, key=partial(peak, depth=depth))

    asked = [(device.memory, depth) for device, depth in zip(devices, depths, strict=True)]
    known = {one: largest(*one) for one in set(asked)}
    found = tuple(known[one] for one in asked)
    if 0 in found:
        client = found.index(0)
        raise DataError(
            f"client {client} has {devices[client].memory / 1e6:.3g} MB and needs {peak(1, depths[client]) / 1e6:.3g} "
            f"MB to train on one example at a time up to stage {depths[client]} of {model.name}: give it a smaller "
            "`deepest`, or leave it out of the population"
        )
    return found


def on_device(
    device: Device,
    recipe: Recipe,
    costs: Costs,
    *,
    examples: float,
    depth: int,
    codecs: Sequence[Counter[tuple[Codec, Codec]]],
) -> dict[str, Any]:
    """What a device spends that takes part in every round: seconds, bytes down and up, of each stage and in total.

    Where all clients are alike these seconds are those of the whole run, since nobody waits for anybody else.

    Args:
        device: The device.
        recipe: How it trains.
        costs: What the phases of the model cost.
        examples: How many examples it holds.
        depth: The deepest stage that it is asked to train.
        codecs: For each phase the codecs of its messages, down and up, and how many rounds have them.

    Returns:
        `stages`, a row for each with `memory_bytes` at its peak and whether that `fits`, and the `total`.
    """
    rows: dict[int, dict[str, Any]] = {}
    for phase, chosen in zip(recipe.schedule, codecs, strict=True):
        own = within(phase, depth)
        cost, peak = costs.phase(own), costs.memory(own, recipe.local).peak
        down = sum(times * message_size(one, cost.down) for (one, _), times in chosen.items())
        up = sum(times * message_size(one, cost.up) for (_, one), times in chosen.items())
        flops = cost.flops * recipe.local.seen(examples)
        row = rows.setdefault(phase.stage, {"stage": phase.stage, **_NOTHING})
        row["rounds"] += phase.rounds
        row["seconds"] += device.seconds(down=down, up=up, flops=phase.rounds * flops)
        row["down_bytes"] += down
        row["up_bytes"] += up
        row["memory_bytes"] = max(row["memory_bytes"], peak)
        row["fits"] = row["memory_bytes"] <= device.memory
    stages = [rows[stage] for stage in sorted(rows)]
    summed = {name: sum(row[name] for row in stages) for name in ("rounds", "seconds", "down_bytes", "up_bytes")}
    highest = max(row["memory_bytes"] for row in stages)
    return {"stages": stages, "total": {**summed, "memory_bytes": highest, "fits": highest <= device.memory}}


_NOTHING = {"rounds": 0, "seconds": 0.0, "down_bytes": 0, "up_bytes": 0, "memory_bytes": 0}
