"""What a client's machine can do: its memory, its speed, and its link, given for each client or drawn for all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from progfed import rng
from progfed.errors import DataError, UsageError, did_you_mean

_PREFIXES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_LINK = r"bit(?:s|/s)?|bps", "10Mbit"
_UNITS = {"memory": ("B", "2GB"), "flops": (r"FLOPS?(?:/s)?", "20GFLOPS"), "down": _LINK, "up": _LINK}
"""How the unit of a number may be written, and an example."""


def _number(name: str, given: Any) -> float:
    """The number that a value or a text such as `2GB` stands for; positive."""
    unit, example = _UNITS[name]
    try:
        value = _read(given, unit) if isinstance(given, str) else float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not value > 0:
        raise UsageError(f"{name} of a device is a positive number, or text such as {example!r}, not {given!r:.60}")
    return value


def _read(text: str, unit: str) -> float:
    found = re.fullmatch(rf"([0-9.]+) *(|[kmgt]i?)(?:{unit})?", text.strip(), flags=re.IGNORECASE)
    if not found:
        raise ValueError(text)
    return float(found[1]) * _PREFIXES[found[2].lower()]


@dataclass(frozen=True, init=False)
class Device:
    """A machine that trains: what is not given has no limit.

    Numbers are bytes, FLOPs a second and bits a second; text such as `"2GB"`, `"20GFLOPS"` or `"10Mbit"` is understood.

    Args:
        memory: The memory that training may take, which is less than what the machine has.
        flops: How many operations on numbers training really does in a second, which is less than what the maker says.
        down: How fast the model arrives.
        up: How fast an update leaves.

    >>> Device(flops="20GFLOPS", down="10Mbit", up="2Mbit").seconds(down=1_000_000, up=500_000, flops=4e10)
    4.8
    """

    memory: float
    flops: float
    down: float
    up: float

    def __init__(
        self,
        *,
        memory: float | str = math.inf,
        flops: float | str = math.inf,
        down: float | str = math.inf,
        up: float | str = math.inf,
    ) -> None:
        for name, given in (("memory", memory), ("flops", flops), ("down", down), ("up", up)):
            object.__setattr__(self, name, _number(name, given))  # the way of a frozen dataclass

    def seconds(self, *, down: float, up: float, flops: float) -> float:
        """How long this machine takes for one round: the model comes, is trained, and an update leaves.

        Args:
            down: The bytes that it is sent.
            up: The bytes that it sends.
            flops: The operations of its training.
        """
        return 8 * down / self.down + flops / self.flops + 8 * up / self.up


PRESETS = {
    "sensor": Device(memory="256MB", flops="1GFLOPS", down="1Mbit", up="1Mbit"),
    "phone": Device(memory="2GB", flops="20GFLOPS", down="40Mbit", up="10Mbit"),
    "laptop": Device(memory="8GB", flops="100GFLOPS", down="100Mbit", up="20Mbit"),
    "workstation": Device(memory="24GB", flops="5TFLOPS", down="1Gbit", up="1Gbit"),
}
"""Machines with a name. Their numbers are round assumptions, not measurements: docs/devices.md says of what."""


@dataclass(frozen=True)
class DeviceMix:
    """Devices that are drawn for the clients of a population; the same seed draws the same device for a client.

    Args:
        weights: How often each device is drawn, relative to the others, by the device or by the name of a preset.
        seed: What they are drawn from.

    >>> DeviceMix({"phone": 3, "laptop": 1}).draw(100).count(PRESETS["phone"])
    82
    """

    weights: Mapping[str | Device, float]
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise UsageError(
                f"a DeviceMix is made of weights such as {{'phone': 3, 'laptop': 1}}, not {self.weights!r}"
            )
        if not all(isinstance(weight, Real) and 0 < weight < math.inf for weight in self.weights.values()):
            raise UsageError(f"the weights of a DeviceMix are positive numbers, not {tuple(self.weights.values())}")

    def draw(self, clients: int) -> tuple[Device, ...]:
        """A device for each client; that of a client does not depend on how many others there are."""
        known = [named(one) for one in self.weights]
        shares = np.cumsum(list(self.weights.values()))
        draws = rng.numpy_generator(self.seed, "devices").random(clients) * shares[-1]
        return tuple(known[place] for place in np.searchsorted(shares[:-1], draws, side="right"))


Devices = Device | str | Sequence[Device | str] | DeviceMix
"""One device for every client, one for each, or a mix to draw from; a preset goes by its name."""


def named(given: Device | str) -> Device:
    """A device as it is; the name of a preset stands for the preset."""
    if isinstance(given, str) and given in PRESETS:
        return PRESETS[given]
    if not isinstance(given, Device):
        hint = did_you_mean(given, PRESETS) if isinstance(given, str) else ""
        raise UsageError(f"{given!r:.60} is no device: {hint}give one of {', '.join(PRESETS)}, or a progfed.Device")
    return given


def of_clients(given: Devices, clients: int, name: str = "data") -> tuple[Device, ...]:
    """The device of each client; empty where none are given.

    Args:
        given: One device for all, one for each, or a mix to draw from.
        clients: How many clients there are.
        name: What an error calls the data.
    """
    if isinstance(given, DeviceMix):
        return given.draw(clients)
    if not isinstance(given, Sequence) or isinstance(given, str):
        return (named(given),) * clients
    devices = tuple(named(one) for one in given)
    if devices and len(devices) != clients:
        raise DataError(f"{name}: {len(devices)} devices for {clients} clients: give one for each, or one for all")
    return devices


def with_link(device: Device, link: str) -> Device:
    """The device with another link.

    Args:
        device: The device.
        link: `10Mbit/2Mbit` down and up, or `10Mbit` in both directions.

    >>> with_link(PRESETS["phone"], "10Mbit/2Mbit").up
    2000000.0
    """
    down, _, up = link.partition("/")
    return replace(device, down=_number("down", down), up=_number("up", up or down))
