"""`report.html` and the files around it, read as files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from progfed.cli.report import fitted, report
from progfed.errors import StorageError
from progfed.report import make_report, write_report
from progfed.report.numbers import amount, percent

from .report_runs import hostile, lines, stopped, summary, tiny


class Page(HTMLParser):
    """The parts of a page that the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.links: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        values = dict(attrs)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")
        if tag == "style":
            self.styles.append("")
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "action", "srcset", "data")]
        assert not any(key.startswith("on") for key, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        for tag, texts in (("script", self.scripts), ("style", self.styles)):
            if inside == tag:
                texts[-1] += data
        if inside in ("td", "th"):
            self.cells[-1] += data


def page_of(runs: Path, out: Path) -> Page:
    return Page(write_report([runs], out)[0].read_text("utf-8"))


def test_the_tables_need_no_script_and_say_what_the_summaries_say(trained: Path, tmp_path: Path) -> None:
    cells = page_of(trained, tmp_path).cells
    ours, baseline = (
        [summary(trained / f"{name}-seed{seed}") for seed in (1, 2)] for name in ("lin", "lin-end-to-end")
    )
    for both in (ours, baseline):
        low, high = sorted(one["metric"] for one in both)
        assert f"{(low + high) / 2:.2f} ± {(high - low) / 2**0.5:.2f}" in cells
        assert amount(sum(one["cost"]["down_bytes"] for one in both) / 2, "B") in cells

    def sent(both: list[dict[str, dict[str, int]]]) -> int:
        return sum(one["cost"]["down_bytes"] + one["cost"]["up_bytes"] for one in both)

    assert percent(sent(ours) / sent(baseline)) in cells


def test_the_embedded_curves_are_the_means_of_the_records(trained: Path, tmp_path: Path) -> None:
    data = json.loads(page_of(trained, tmp_path).scripts[0])
    curves = {curve["label"]: curve for curve in data["panels"][0]["curves"]}
    seeds = [lines(trained / f"lin-seed{seed}") for seed in (1, 2)]
    curve = curves["lin"]
    assert curve["mean"] == [pytest.approx((a["metric"] + b["metric"]) / 2) for a, b in zip(*seeds, strict=True)]
    assert curve["flops"] == [(a["total"]["flops"] + b["total"]["flops"]) / 2 for a, b in zip(*seeds, strict=True)]
    assert curve["warmup"] == [line["warmup"] for line in seeds[0]]
    before = next(line for line in reversed(seeds[0]) if line["stage"] == 1)
    assert [(border["stage"], border["at"]["round"]) for border in curve["borders"]] == [(2, before["round"])]
    assert curves["lin-end-to-end"]["borders"] == []


def test_the_page_asks_for_nothing_outside_itself(trained: Path, tmp_path: Path) -> None:
    page = page_of(trained, tmp_path)
    assert all(link.startswith("#") for link in page.links)
    assert "@import" not in page.styles[0]
    assert "url(" not in page.styles[0]


def test_the_policy_admits_exactly_the_style_and_the_script_of_the_page(trained: Path, tmp_path: Path) -> None:
    page = page_of(trained, tmp_path)
    parts = dict(part.split(" ", 1) for part in page.policy.split("; "))
    assert parts["default-src"] == "'none'"
    for kind, text in (("style-src", page.styles[0]), ("script-src", page.scripts[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert parts[kind] == f"'sha256-{digest}'"


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$data $x {0}"]
)
def test_a_name_from_a_file_is_only_text(tmp_path: Path, name: str) -> None:
    stopped(hostile(tiny(), name), tmp_path / "run", 2)
    page = page_of(tmp_path / "run", tmp_path / "out")
    assert name in page.cells
    assert len(page.scripts) == 2
    assert json.loads(page.scripts[0])["panels"][0]["curves"][0]["label"] == name


def test_an_experiments_name_cannot_lead_a_file_elsewhere(tmp_path: Path) -> None:
    stopped(hostile(tiny(), "../../up/../x y"), tmp_path / "run", 2)
    written = write_report([tmp_path / "run"], tmp_path / "out")
    assert {path.parent for path in written} == {tmp_path / "out"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in written)
    assert "up-x-y-bytes.svg" in {path.name for path in written}


def test_the_same_records_give_the_same_files(trained: Path, tmp_path: Path) -> None:
    first, second = (write_report([trained], tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_folder_that_cannot_be_written_is_one_clear_error(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose another folder with --out"):
        write_report([trained], tmp_path / "file" / "out")


def call(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_command_prints_the_tables_and_where_the_page_is(trained: Path, tmp_path: Path) -> None:
    said = call(str(trained), "--out", str(tmp_path))
    low, high = sorted(summary(trained / f"lin-seed{seed}")["metric"] for seed in (1, 2))
    row = next(line for line in said.splitlines() if line.startswith("lin "))
    assert f"{(low + high) / 2:.2f} ± {(high - low) / 2**0.5:.2f}" in row
    assert said.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


@pytest.mark.parametrize("width", [30, 80, 120, 240])
def test_a_narrow_terminal_has_every_column_once_and_no_piece_too_wide(trained: Path, width: int) -> None:
    made = make_report([trained])
    for table in made.tables(made.studies[0]):
        pieces = fitted(table, width)
        assert [heading for piece in pieces for heading in piece.headings[1:]] == list(table.headings[1:])
        for piece in pieces:
            widths = [
                max(len(word) for word in [*heading.split(), *cells])
                for heading, *cells in zip(piece.headings, *piece.rows, strict=True)
            ]
            assert sum(widths) + 2 * len(widths) <= width or len(widths) == 2
        cells = [[piece.rows[index][1:] for piece in pieces] for index in range(len(table.rows))]
        assert [sum(row, ()) for row in cells] == [row[1:] for row in table.rows]


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    stopped(tiny(), tmp_path / "half", 3)
    said = call(str(tmp_path))
    assert "note: tiny: lin: seed 1 has 3 of 9 rounds" in said
    assert "note: tiny: lin: no run of its baseline lin-end-to-end to compare with" in said
    assert (tmp_path / "report" / "report.html").exists()


def test_brackets_in_a_name_are_not_markup_on_the_terminal(tmp_path: Path) -> None:
    stopped(hostile(tiny(), "[red]run[/red]"), tmp_path / "run", 2)
    assert "[red]run[/red]" in call(str(tmp_path))


def test_json_for_machines_holds_numbers_notes_and_files(trained: Path, tmp_path: Path) -> None:
    told = json.loads(call(str(trained), "--out", str(tmp_path), "--json", "--format", "png"))
    (experiment,) = told["experiments"]
    ours = next(run for run in experiment["runs"] if run["run"] == "lin")
    finals = [summary(trained / f"lin-seed{seed}") for seed in (1, 2)]
    assert ours["metric_mean"] == pytest.approx(sum(one["metric"] for one in finals) / 2)
    assert ours["up_bytes"] == sum(one["cost"]["up_bytes"] for one in finals) / 2
    assert {row["share"] for row in experiment["reach"]} == {0.5, 0.6, 0.7, 0.8, 0.9, 0.98, 0.99, 0.995, 0.9995, 1.0}
    assert told["missing"] == []
    assert all(Path(path).stat().st_size > 100 for path in told["files"])
    assert re.search(r"tiny-bytes\.png", " ".join(told["files"]))
