"""Hours on devices in a report: an axis, a column, a row of the costs to reach; nothing where devices are unknown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from progfed.devices import Device
from progfed.population import FederatedData
from progfed.report.collect import collect
from progfed.report.curves import AXES, DEVICE_HOURS, Study, studies
from progfed.report.present import reach_table, result_table
from progfed.report.tables import reaches, rows
from progfed.report.write import make_report, save_report
from progfed.runs.train import run

from .report_runs import lines, tiny


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs of the experiment on a slow link."""
    root = tmp_path_factory.mktemp("devices")
    for grows in (False, True):
        experiment = tiny(grows=grows)
        assert isinstance(experiment.data, FederatedData)
        data = replace(experiment.data, devices=Device(flops="1k", down="1kbit", up="500bit"))
        run(replace(experiment, data=data), root / experiment.run)
    return root


def one(folder: Path) -> Study:
    (study,) = studies(collect([folder]))
    return study


def test_hours_are_the_sum_of_the_records_so_far(on_devices: Path) -> None:
    for found in collect([on_devices]).runs:
        seconds = [line["device_seconds"] for line in lines(found.path)]
        hours = [sum(seconds[: i + 1]) / 3600 for i in range(len(seconds))]
        assert [point.device_hours for point in found.points] == pytest.approx(hours)


def test_hours_to_reach_a_share_stand_beside_bytes_and_flops(on_devices: Path) -> None:
    study = one(on_devices)
    baseline = study.named("lin-end-to-end")
    ours = study.named("lin")
    assert baseline is not None
    assert ours is not None
    for reach in reaches(study):
        at = [next((p.at for p in s.points if p.metric.mean >= reach.target), None) for s in (ours, baseline)]
        assert reach.device_hours == (at[0]["device_hours"] if at[0] else None)
        if at[0] and at[1]:
            assert reach.device_hours_relative == at[0]["device_hours"] / at[1]["device_hours"]
    table = reach_table(study, reaches(study))
    assert table is not None
    assert [row[1] for row in table.rows] == ["bytes", "FLOPs", "hours on devices"]
    shown = result_table(study, rows(study))
    place = shown.headings.index("hours on devices")
    assert [float(row[place]) for row in shown.rows] == [
        pytest.approx(s.points[-1].at["device_hours"], abs=5e-3) for s in study.series
    ]


def test_hours_are_an_axis_of_the_page_and_a_figure_in_a_file(on_devices: Path, tmp_path: Path) -> None:
    assert one(on_devices).axes[-1] == DEVICE_HOURS
    written = save_report(make_report([on_devices]), tmp_path)
    assert tmp_path / "tiny-device_hours.svg" in written
    data = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', (tmp_path / "report.html").read_text(), re.DOTALL)
    assert data is not None
    (panel,) = json.loads(data[1])["panels"]
    assert panel["axes"][-1]["title"] == "hours on devices"
    assert all(curve["device_hours"] == sorted(curve["device_hours"]) for curve in panel["curves"])


def test_where_a_run_has_no_devices_hours_are_left_out(on_devices: Path, trained: Path) -> None:
    plain = one(trained)
    assert plain.axes == AXES
    assert "hours on devices" not in result_table(plain, rows(plain)).headings
    table = reach_table(plain, reaches(plain))
    assert table is not None
    assert {row[1] for row in table.rows} == {"bytes", "FLOPs"}
    both = replace(plain, series=(*plain.series, *one(on_devices).series))
    assert both.axes == AXES
