"""`report.html` as a reader has it: in a browser, from disk, in light and dark, on a desk and on a phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from progfed.report import write_report
from progfed.report.numbers import amount, duration

from .report_runs import hostile, lines, stopped, tiny

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
AXES = ("bytes", "flops", "round", "seconds")


def need(found: object, what: str) -> None:
    """Without the browser there is nothing to test: a failure where everything must run, a skip elsewhere."""
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    need(chromium, "Debian's package chromium")
    need(driver, "Debian's package chromium-driver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        need(None, "selenium (the extra `dev`)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, Service(driver))
    yield started
    started.quit()


class Reader:
    """What a person does with the page, and what they see."""

    def __init__(self, browser: Any, page: Path) -> None:
        self.browser = browser
        browser.get_log("browser")
        self.look(width=1200, dark=False)
        browser.get(page.as_uri())

    def look(self, *, width: int, dark: bool, script: bool = True) -> None:
        wide = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wide)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        found = self.run("return [...document.querySelectorAll(arguments[0])].map(n => n.textContent)", selector)
        return [str(text) for text in found]

    def count(self, selector: str) -> int:
        return len(self.texts(selector))

    def click(self, selector: str, number: int = 0) -> None:
        self.browser.find_elements("css selector", selector)[number].click()

    def choose(self, axis: str) -> None:
        self.click(f".segments input[value={axis}]")

    def point(self, curve: int, number: int) -> tuple[float, float]:
        """Where a point of a curve is drawn, in the window."""
        self.run("document.querySelector('.plot').scrollIntoView({block: 'center'})")
        path = self.run("return document.querySelectorAll('.line')[arguments[0]].getAttribute('d')", curve)
        x, y = (float(value) for value in path[1:].split("L")[number].split())
        frame = self.run("const r = document.querySelector('.live').getBoundingClientRect(); return [r.left, r.top]")
        return frame[0] + x, frame[1] + y

    def hover(self, curve: int, number: int) -> str:
        x, y = self.point(curve, number)
        self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x + 1, "y": y + 1})
        return self.tip()

    def tip(self) -> str:
        """The value that is shown, or nothing."""
        shown = self.run("const t = document.querySelector('.tip'); return t.hidden ? '' : t.innerText")
        return str(shown)

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def reader(browser: Any, trained: Path, tmp_path: Path) -> Reader:
    return Reader(browser, write_report([trained], tmp_path)[0])


def means(folder: Path, run: str) -> list[dict[str, Any]]:
    """The rounds of a run, averaged over its two seeds, without the library."""
    found = []
    for first, second in zip(*(lines(folder / f"{run}-seed{seed}") for seed in (1, 2)), strict=True):
        total = {key: (first["total"][key] + second["total"][key]) / 2 for key in first["total"]}
        low, high = sorted((first["metric"], second["metric"]))
        found.append(
            first
            | total
            | {"bytes": total["down_bytes"] + total["up_bytes"]}
            | {"mean": (low + high) / 2, "std": (high - low) / 2**0.5}
        )
    return found


def test_hovering_a_point_shows_what_the_records_say(reader: Reader, trained: Path) -> None:
    for number, record in enumerate(means(trained, "lin")):
        shown = reader.hover(1, number).splitlines()
        assert shown[0] == "lin"
        assert shown[1] == f"{record['mean']:.2f} ± {record['std']:.2f} %"
        warm = ", warm-up" if record["warmup"] else ""
        assert shown[2] == f"round {record['round']}, stage {record['stage']}{warm}"
        costs = (amount(record["bytes"], "B"), amount(record["flops"], "FLOP"), duration(record["seconds"]))
        assert shown[3] == ", ".join(costs)
    assert reader.problems() == []


def test_hovering_also_tells_what_the_other_run_had_at_the_same_cost(reader: Reader, trained: Path) -> None:
    record = means(trained, "lin")[-1]
    other = [one for one in means(trained, "lin-end-to-end") if one["bytes"] <= record["bytes"]][-1]
    assert reader.hover(1, -1).splitlines()[-1] == f"lin-end-to-end: {other['mean']:.2f} ± {other['std']:.2f} %"


def test_the_value_goes_when_the_pointer_leaves(reader: Reader) -> None:
    assert reader.hover(0, 2)
    reader.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 5, "y": 5})
    assert reader.tip() == ""


def test_arrow_keys_walk_along_the_curve_and_to_the_next(reader: Reader, trained: Path) -> None:
    plot = reader.browser.find_element("css selector", ".plot")
    right, down = "\ue014", "\ue015"
    plot.send_keys(right, right)
    assert reader.tip().splitlines()[2] == "round 2, stage 2"
    plot.send_keys(down)
    record = means(trained, "lin")[1]
    assert reader.tip().splitlines()[:2] == ["lin", f"{record['mean']:.2f} ± {record['std']:.2f} %"]


def test_a_click_on_a_name_hides_its_curve_and_another_brings_it_back(reader: Reader) -> None:
    assert reader.texts(".legend button") == ["lin-end-to-end", "lin"]
    reader.click(".legend button", 1)
    assert reader.run("return [...document.querySelectorAll('.curve')].map(n => n.dataset.curve)") == ["0"]
    assert reader.count(".border") == 0
    assert reader.run("return document.querySelectorAll('.legend button')[1].ariaPressed") == "false"
    reader.click(".legend button", 0)
    assert "every curve is hidden" in reader.texts(".live text")
    reader.click(".legend button", 1)
    assert reader.run("return [...document.querySelectorAll('.curve')].map(n => n.dataset.curve)") == ["1"]


@pytest.mark.parametrize("axis", AXES)
def test_points_stand_where_the_chosen_cost_puts_them(reader: Reader, trained: Path, axis: str) -> None:
    reader.choose(axis)
    costs = [record[axis] for record in means(trained, "lin")]
    places = [reader.point(1, number)[0] for number in range(len(costs))]
    for cost, place in zip(costs, places, strict=True):
        share = (cost - costs[0]) / (costs[-1] - costs[0])
        assert place == pytest.approx(places[0] + share * (places[-1] - places[0]), abs=0.2)
    titles = {
        "bytes": "bytes sent, both directions",
        "flops": "training FLOPs",
        "round": "rounds",
        "seconds": "seconds",
    }
    assert reader.texts(".axis") == [titles.get(axis, axis)]


def test_growth_warm_up_and_the_spread_of_seeds_are_drawn(reader: Reader, trained: Path) -> None:
    reader.choose("round")
    records = means(trained, "lin")
    assert reader.texts(".stage") == ["stage 2"]
    assert reader.count(".warm") == sum(record["warmup"] for record in records) == 1
    assert reader.count(".band") == 2
    grown = next(number for number, record in enumerate(records) if record["stage"] == 2)
    path = reader.run("return document.querySelector('.border').getAttribute('d')")
    left = reader.run("return document.querySelector('.live').getBoundingClientRect().left")
    assert left + float(path[1:].split()[0]) == pytest.approx(reader.point(1, grown - 1)[0], abs=0.2)


def luminance(colour: str) -> float:
    return sum(float(value) for value in colour.strip("rgba()").split(",")[:3]) / 765


def test_dark_mode_turns_the_page_dark_and_the_text_light(reader: Reader) -> None:
    def colours() -> tuple[float, float]:
        page = reader.run("return getComputedStyle(document.body).backgroundColor")
        text = reader.run("return getComputedStyle(document.querySelector('td')).color")
        return luminance(page), luminance(text)

    page, text = colours()
    assert page > 0.9
    assert text < 0.2
    reader.look(width=1200, dark=True)
    page, text = colours()
    assert page < 0.1
    assert text > 0.8


@pytest.mark.parametrize("width", [320, 390, 768])
def test_no_screen_needs_to_scroll_sideways(browser: Any, trained: Path, tmp_path: Path, width: int) -> None:
    stopped(hostile(tiny(), "a-name-that-goes-on-and-on-" * 4), tmp_path / "long", 2)
    page = Reader(browser, write_report([trained, tmp_path / "long"], tmp_path / "out")[0])
    page.look(width=width, dark=False)
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run("return document.querySelector('.live').getBoundingClientRect().width") > 0.8 * width


def test_a_tap_on_a_phone_shows_the_value_and_keeps_it(reader: Reader, trained: Path) -> None:
    reader.look(width=390, dark=False)
    reader.browser.refresh()
    x, y = reader.point(1, 4)
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        reader.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    record = means(trained, "lin")[4]
    assert reader.tip().splitlines()[1] == f"{record['mean']:.2f} ± {record['std']:.2f} %"
    box = reader.run("const r = document.querySelector('.tip').getBoundingClientRect(); return [r.left, r.right]")
    assert box[0] >= 0
    assert box[1] <= 390


def test_without_script_there_are_tables_and_a_still_picture(browser: Any, trained: Path, tmp_path: Path) -> None:
    page = write_report([trained], tmp_path)[0]
    reader = Reader(browser, page)
    reader.look(width=1200, dark=False, script=False)
    try:
        browser.get(page.as_uri())
        record = means(trained, "lin")[-1]
        assert f"{record['mean']:.2f} ± {record['std']:.2f}" in browser.page_source
        assert browser.find_element("css selector", "svg[role=img]").is_displayed()
        assert not browser.find_elements("css selector", ".legend")
    finally:
        reader.look(width=1200, dark=False)


def test_markup_in_a_name_is_shown_and_does_nothing(browser: Any, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=document.title='taken'>"
    stopped(hostile(tiny(), name), tmp_path / "run", 2)
    reader = Reader(browser, write_report([tmp_path / "run"], tmp_path / "out")[0])
    assert reader.texts("h2") == [name]
    assert reader.texts(".legend button") == [name]
    assert reader.hover(0, 1).splitlines()[0] == name
    assert reader.count("img") == 0
    assert browser.title == "progfed report"
    assert reader.problems() == []
