"""Devices: how they are written, given to clients, drawn, and what they change of an experiment."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from progfed.data.validation import held_out
from progfed.devices import PRESETS, Device, DeviceMix, of_clients, with_link
from progfed.errors import DataError, UsageError
from progfed.population import from_clients
from progfed.runs.identity import identity
from tiny import tiny_data, tiny_experiment

PHONE, LAPTOP = PRESETS["phone"], PRESETS["laptop"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("2GB", 2e9), ("1.5 GB", 1.5e9), ("512MiB", 512 * 2**20), ("64k", 64e3), ("100", 100), (7, 7), ("3gb", 3e9)],
)
def test_memory_is_read_from_text(text: str, number: float) -> None:
    assert Device(memory=text).memory == number


@pytest.mark.parametrize("text", ["10Mbit", "10 Mbit/s", "10Mbps", "10Mbits", "10M", "0.01Gbit", 10e6])
def test_a_link_is_read_from_text(text: str) -> None:
    assert Device(down=text).down == Device(up=text).up == 10e6


@pytest.mark.parametrize("text", ["20GFLOPS", "20 GFLOP/s", "20gflop", "20G", 2e10])
def test_a_speed_is_read_from_text(text: str) -> None:
    assert Device(flops=text).flops == 2e10


@pytest.mark.parametrize("wrong", ["fast", "", "10MB", "1..2M", "-1", 0, -3, math.nan, None, "10iM"])
def test_what_is_no_speed_of_a_link_is_one_sentence(wrong: object) -> None:
    with pytest.raises(UsageError, match="down of a device is a positive number, or text such as '10Mbit', not"):
        Device(down=wrong)  # type: ignore[arg-type]


def test_what_is_not_given_has_no_limit_and_costs_no_time() -> None:
    assert Device(down="8Mbit").seconds(down=2_000_000, up=10**9, flops=1e18) == 2.0


def test_a_link_replaces_that_of_the_device_in_one_or_both_directions() -> None:
    assert with_link(PHONE, "10Mbit/2Mbit") == replace(PHONE, down=10e6, up=2e6)
    assert with_link(PHONE, "3Mbit") == replace(PHONE, down=3e6, up=3e6)
    with pytest.raises(UsageError, match="up of a device is a positive number"):
        with_link(PHONE, "3Mbit/quick")


def test_devices_are_given_for_all_for_each_or_drawn() -> None:
    assert of_clients("phone", 3) == of_clients(PHONE, 3) == (PHONE,) * 3
    assert of_clients(["phone", LAPTOP], 2) == (PHONE, LAPTOP)
    assert of_clients((), 5) == ()
    with pytest.raises(DataError, match="data: 2 devices for 3 clients: give one for each"):
        of_clients([PHONE, LAPTOP], 3)
    with pytest.raises(UsageError, match="'fone' is no device: did you mean phone"):
        of_clients("fone", 3)
    with pytest.raises(UsageError, match="7 is no device: give one of sensor, phone"):
        of_clients(7, 3)  # type: ignore[arg-type]


def test_a_mix_is_drawn_by_its_weights_and_by_its_seed() -> None:
    mix = DeviceMix({"phone": 3, LAPTOP: 1}, seed=4)
    drawn = mix.draw(4000)
    assert drawn == mix.draw(4000) != replace(mix, seed=5).draw(4000)
    assert Counter(drawn)[PHONE] == pytest.approx(3000, abs=120)
    assert set(drawn) == {PHONE, LAPTOP}


def test_the_device_of_a_client_does_not_depend_on_how_many_others_there_are() -> None:
    mix = DeviceMix({"phone": 1, "laptop": 1, "sensor": 2})
    assert mix.draw(500)[:20] == mix.draw(20)


@pytest.mark.parametrize("weights", [{}, {"phone": 0}, {"phone": math.inf}, {"phone": "3"}, ["phone"]])
def test_a_mix_without_weights_is_refused(weights: object) -> None:
    with pytest.raises(UsageError, match="DeviceMix"):
        DeviceMix(weights)  # type: ignore[arg-type]


def test_a_population_has_a_device_for_each_client_and_keeps_it_when_some_are_held_out() -> None:
    some = torch.zeros(2, 6), torch.zeros(2, dtype=torch.long)
    assert from_clients([some, some], test=some, devices="phone").devices == (PHONE, PHONE)
    with pytest.raises(DataError, match="tiny data: 2 devices for 6 clients"):
        replace(tiny_data(), devices=[PHONE, PHONE])
    given = [Device(memory=1 + i) for i in range(6)]
    data = replace(tiny_data(), devices=given)
    assert list(held_out(data, 0.2).devices) == given
    left = held_out(data, 0.4, clients=True)
    assert [data.sizes[given.index(device)] for device in left.devices] == list(left.sizes)


def test_devices_are_part_of_an_experiment_only_where_they_are_given() -> None:
    plain, phones, laptops = (
        identity(tiny_experiment(data=replace(tiny_data(), devices=devices))) for devices in ((), "phone", "laptop")
    )
    assert plain == identity(tiny_experiment())
    assert len({plain, phones, laptops}) == 3
