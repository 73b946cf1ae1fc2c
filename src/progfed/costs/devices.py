"""Which sub-models fit into the memory of which device."""

from __future__ import annotations

from collections.abc import Sequence

from progfed.blocks import Progressive
from progfed.costs import Costs
from progfed.devices import Device
from progfed.errors import DataError
from progfed.recipe.recipe import Local
from progfed.schedule import Phase, Schedule, within


def deepest_for(
    model: Progressive, devices: Sequence[Device], local: Local, *, schedule: Schedule = ()
) -> tuple[int, ...]:
    """The deepest stage that each device has the memory to train, as `FederatedData(deepest=…)` takes it.

    Args:
        model: The model.
        devices: The device of each client, such as `data.devices`.
        local: How a client trains: its batch, momentum and loss are part of what training takes.
        schedule: What is trained. A device is given a depth where every phase of it, cut to that depth, fits; so one
            that freezes blocks lets weak devices go deeper. Empty: all of every sub-model is trained.
    """
    costs = Costs(model)
    phases = schedule or tuple(Phase(stage, 1) for stage in range(1, model.stages + 1))
    needed = {
        depth: max(costs.memory(within(phase, depth), local).peak for phase in phases)
        for depth in range(1, model.stages + 1)
    }
    if weak := [client for client, device in enumerate(devices) if device.memory < needed[1]]:
        first = devices[weak[0]].memory / 1e6
        raise DataError(
            f"{len(weak)} of {len(devices)} clients, the first is {weak[0]}, cannot train stage 1 of {model.name}: it "
            f"takes {needed[1] / 1e6:.3g} MB with batches of {local.batch}, and that device has {first:.3g} MB: leave "
            "such clients out of the population, or use smaller batches"
        )
    deepest = {device: max(depth for depth, peak in needed.items() if peak <= device.memory) for device in set(devices)}
    return tuple(deepest[device] for device in devices)
