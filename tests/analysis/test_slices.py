"""Segmentations of test slices: from a U-Net's run to the pictures in a report."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from progfed.analysis import draw_slices, open_run, slices
from progfed.analysis.slices import labels, segments
from progfed.errors import StorageError
from progfed.evaluate import dice
from progfed.losses import dice_loss
from progfed.models.unet import unet
from progfed.population import Examples, FederatedData, from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.report import make_report, write_report
from progfed.report.collect import collect
from progfed.report.curves import studies
from progfed.report.measured import measured
from progfed.report.pictures import BUDGETS, budget_grid, coloured, draw, final_grid
from progfed.runs.experiment import Experiment
from progfed.runs.snapshots import read_model
from progfed.runs.train import train
from progfed.schedule import end_to_end, progressive

SIZE = (8, 6, 8)


def volumes() -> FederatedData:
    """Balls of bright voxels with a brighter core, on a noisy background."""
    draw = torch.Generator().manual_seed(1)
    axes = torch.meshgrid(*(torch.arange(length).float() for length in SIZE), indexing="ij")

    def some(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        centres = torch.rand(number, 3, generator=draw) * 2 + torch.tensor(SIZE) / 2 - 1
        distance = torch.stack([sum((a - c) ** 2 for a, c in zip(axes, centre, strict=True)) for centre in centres])
        targets = (distance < 8).long() + (distance < 2).long()
        return (targets + 0.1 * torch.randn(targets.shape, generator=draw))[:, None], targets

    return from_clients([some(3) for _ in range(2)], test=some(4), classes=3, name="balls")


def experiment(run: str, *, growth: str = "symmetric", grows: bool = True) -> Experiment:
    return Experiment(
        name="balls",
        run=run,
        baseline="end-to-end" if grows else "",
        model=partial(unet, widths=(2, 4), in_channels=1, stages=2, size=SIZE, growth=growth),
        data=volumes(),
        recipe=Recipe(
            schedule=progressive(4, stages=2) if grows else end_to_end(4, stages=2),
            cohort=2,
            rate=Constant(0.05),
            local=Local(batch=3, momentum=0.9, loss=dice_loss),
        ),
        metric=dice,
    )


RUNS = (
    experiment("end-to-end", grows=False),
    experiment("symmetric"),
    experiment("asymmetric", growth="asymmetric"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three runs, trained with all their models and analysed."""
    root = tmp_path_factory.mktemp("balls")
    source = root / "source.py"
    source.write_text(f"import sys\nRUNS = sys.modules[{__name__!r}].RUNS\n")
    for one in RUNS:
        for _ in train(one, root / "runs" / one.run, data=root, keep_every=1):
            pass
        trained = open_run(root / "runs" / one.run, data=root, source=str(source))
        slices.write(draw_slices(trained, trained.data.test_examples()), trained.path)
    return root / "runs"


def test_every_model_draws_the_slice_with_most_to_find(runs: Path) -> None:
    test = volumes().test_examples()
    for run in ("symmetric", "asymmetric"):
        found = slices.read(runs / run)
        assert set(found) == {"input", "truth", *(f"round-{number:05d}" for number in range(1, 5))}
        for place in range(slices.NUMBER):
            most = max(range(SIZE[2]), key=lambda at, place=place: int((test.targets[place][..., at] > 0).sum()))
            assert torch.equal(found["truth"][place].long(), test.targets[place][..., most])
            assert torch.equal(found["input"][place], test.inputs[place, 0, ..., most])


def test_a_prediction_is_the_models_own_on_the_whole_volume(runs: Path) -> None:
    test = volumes().test_examples()
    module = RUNS[1].make_model().at(1, read_model(runs / "symmetric/models/round-00001.safetensors")).eval()
    found = slices.read(runs / "symmetric")
    expected = module(test.inputs[:1]).argmax(1)[0]
    matches = [at for at in range(SIZE[2]) if torch.equal(expected[..., at], found["round-00001"][0].long())]
    truth = [at for at in range(SIZE[2]) if torch.equal(test.targets[0][..., at], found["truth"][0].long())]
    assert set(matches) & set(truth)


def test_nested_regions_become_the_number_of_regions_that_hold_a_voxel() -> None:
    regions = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    assert labels(regions, 1).tolist() == [[2, 1, 0]]
    assert labels(torch.tensor([[0, 1, 2]]), 1).tolist() == [[0, 1, 2]]


def test_images_with_one_label_each_are_not_segmented() -> None:
    assert not segments(Examples(torch.zeros(2, 3, 4, 4), torch.zeros(2)))
    assert segments(Examples(torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4)))
    assert segments(Examples(torch.zeros(2, 4, 4, 4, 4), torch.zeros(2, 3, 4, 4, 4)))


def test_the_final_grid_shows_input_truth_and_every_run(runs: Path) -> None:
    (study,) = studies(collect([runs]))
    headings, rows = final_grid(study, measured(study).segmented)
    assert [heading.split("\n")[0] for heading in headings] == [
        "input",
        "truth",
        "end-to-end",
        "asymmetric",
        "symmetric",
    ]
    assert headings[2].endswith("100.00 % of bytes")
    assert len(rows) == slices.NUMBER
    found = slices.read(runs / "symmetric")
    assert torch.equal(rows[1][4].labels, found["round-00004"][1])  # type: ignore[arg-type]


def test_within_a_budget_every_run_shows_its_last_model_that_cost_no_more(runs: Path) -> None:
    (study,) = studies(collect([runs]))
    found = measured(study).segmented
    grid = budget_grid(study, found)
    assert grid is not None
    whole = json.loads((runs / "end-to-end/summary.json").read_text())["cost"]
    budget = whole["down_bytes"] + whole["up_bytes"]
    for one, row in zip(found, grid[1], strict=True):
        sent = [point.bytes for point in one.run.points]
        for share, cell in zip(BUDGETS, row[1:], strict=False):
            cheap = [number for number, cost in enumerate(sent, start=1) if cost <= share * budget]
            assert cell.text.startswith(f"round {cheap[-1]}," if cheap else "nothing this cheap")


def test_the_report_has_the_pictures_in_files_and_in_the_page(runs: Path, tmp_path: Path) -> None:
    written = {path.name for path in write_report([runs], tmp_path)}
    assert {f"balls-{part}.{kind}" for part in ("slices", "budgets") for kind in ("png", "svg")} <= written
    page = (tmp_path / "report.html").read_text()
    inline = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    assert inline == [(tmp_path / f"balls-{part}.png").read_bytes() for part in ("slices", "budgets")]
    picture = imread(io.BytesIO(inline[0]))
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 50
    assert "img-src data:" in page


def test_the_same_slices_give_the_same_files(runs: Path) -> None:
    (study,) = studies(collect([runs]))
    grid = final_grid(study, measured(study).segmented)
    for kind in ("png", "svg", "pdf"):
        assert draw(grid, kind) == draw(grid, kind)


def test_a_run_that_kept_no_models_shows_its_final_one_and_says_so(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    found = slices.read(copy / "end-to-end")
    slices.write({name: found[name] for name in ("input", "truth", "round-00004")}, copy / "end-to-end")
    report = make_report([copy])
    assert any("pictures at a budget show the final one (--keep N): end-to-end" in note for note in report.notes)
    grid = budget_grid(report.studies[0], measured(report.studies[0]).segmented)
    assert grid is not None
    assert all(cell.text.startswith("round 4,") for cell in grid[1][0][1:-1])


def test_runs_that_were_not_analysed_are_reported_without_pictures(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    for path in copy.rglob(slices.FILE):
        path.unlink()
    written = {path.name for path in write_report([copy], tmp_path / "out")}
    assert not any("slices" in name for name in written)
    assert any("`progfed analyse`" in note for note in make_report([copy]).notes)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        slices.to_bytes({"input": torch.zeros(2)}),
        slices.to_bytes({"input": torch.zeros(2, 3, 4), "truth": torch.zeros(2, 3, 5)}),
    ],
    ids=["empty", "junk", "no picture", "unequal shapes"],
)
def test_damaged_slices_are_named_and_the_rest_is_reported(runs: Path, tmp_path: Path, content: bytes) -> None:
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    (copy / "symmetric" / slices.FILE).write_bytes(content)
    with pytest.raises(StorageError, match="make it again with `progfed analyse`"):
        slices.read(copy / "symmetric")
    report = make_report([copy])
    assert any("slices.safetensors is damaged" in note for note in report.notes)
    assert len(measured(report.studies[0]).segmented) == 2


def test_labels_are_coloured_and_background_is_clear() -> None:
    colours = coloured(torch.tensor([[0, 1, 2, 6]], dtype=torch.uint8))
    assert colours[0, 0, 3] == 0
    assert (colours[0, 1:, 3] > 0).all()
    assert not (colours[0, 1] == colours[0, 2]).all()
    assert (colours[0, 1] == colours[0, 3]).all()
