"""Speed against peers and against the machine's limit, as ratios in one run.

    python benchmarks/run.py [--rows W1,W2] [--turns 3] [--peers plain,flower,pfl] [--fresh] [--json]

A row that is already there is not measured again, so an interrupted run goes on where it stopped. Rounds of all
variants take turns, the ratios are taken inside each turn, and their median is printed. Rows are kept in
`benchmarks/out/`; all of them go to `docs/performance.json`, into `docs/performance.md` and `docs/performance.svg`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import machine
from figure import draw
from rows import ROWS, Options
from workloads import WORKLOADS

OUT = Path(__file__).parent / "out"
DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- results: written by benchmarks/run.py -->", "<!-- end of results -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), help="which rows, separated by commas")
    parser.add_argument("--turns", type=int, default=3, help="rounds of each variant")
    parser.add_argument("--patience", type=int, default=2, help="how often a disturbed round is run again")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which a row begins no further turn")
    parser.add_argument("--peers", default="plain,flower,pfl", help="which peers, separated by commas")
    parser.add_argument("--fresh", action="store_true", help="measure again what is already there")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    chosen = parser.parse_args()
    wanted = chosen.rows.split(",")
    if unknown := sorted(set(wanted) - set(ROWS)):
        sys.exit(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    options = Options(chosen.turns, chosen.patience, chosen.budget, tuple(filter(None, chosen.peers.split(","))))
    for name in wanted:
        measure(name, options, fresh=chosen.fresh)
    found = results()
    draw(found, DOCS / "performance.svg")
    (DOCS / "performance.json").write_text(json.dumps(found, indent=1) + "\n")
    publish(found, DOCS / "performance.md")
    print(json.dumps(found, indent=2) if chosen.json else table(found))


def publish(found: dict[str, Any], page: Path) -> None:
    """Put the tables into the page, between its two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = "![time of one federated round](performance.svg)\n\n" if (DOCS / "performance.svg").exists() else ""
    page.write_text(f"{before}{BEGIN}\n\n{drawn}{table(found)}\n\n{END}{after}")


def measure(name: str, options: Options, *, fresh: bool) -> None:
    """One row, unless it is there; the machine's GEMM rate is taken with it."""
    path = OUT / f"{name}.json"
    if path.exists() and not fresh:
        return
    print(f"measuring {name} …", file=sys.stderr, flush=True)
    began, rate = time.perf_counter(), machine.gemm(2)
    found = ROWS[name](options)
    facts = {"turns_asked": options.turns, "gemm": rate, "took": time.perf_counter() - began, **machine.describe()}
    OUT.mkdir(exist_ok=True)
    path.write_text(json.dumps({"row": name, **facts, "found": found}, indent=1) + "\n")


def results() -> dict[str, Any]:
    """All rows that are there."""
    return {name: json.loads(path.read_text()) for name in ROWS if (path := OUT / f"{name}.json").exists()}


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    return "\n\n".join(filter(None, (rounds(found), savings(found), others(found))))


def rounds(found: dict[str, Any]) -> str:
    """A line for each workload and variant."""
    lines = [
        "| | variant | s a round | progfed is faster by | of the kernel floor | start, s | memory, MB | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in WORKLOADS:
        if name not in found:
            continue
        row = found[name]["found"]
        floor = row["variants"]["floor"]["seconds"]
        for told in row["variants"].values():
            lines.append(
                f"| {name} | {told['variant']} | {told['seconds']:.2f} | {told['ratio']:.2f}x "
                f"| {100 * floor / told['seconds']:.0f} % | {told['start']:.1f} | {told['megabytes']:.0f} "
                f"| {100 * told['others']:.0f} % |"
            )
        ours = row["variants"]["progfed"]
        lines.append(
            f"| {name} | outside forward, backward and step: {100 * ours['outside']:.1f} % of the round; "
            f"{ours['gflop'] / ours['seconds']:.0f} GFLOP/s of {found[name]['gemm']:.0f} (GEMM) | | | | | | |"
        )
    return "\n".join(lines)


def savings(found: dict[str, Any]) -> str:
    """A line for each workload that was trained stage by stage."""
    lines = [
        "| progressive | s a round, stage by stage | saved FLOPs | saved seconds | kept |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if name.startswith("stages-"):
            told = row["found"]
            each = ", ".join(f"{seconds:.2f}" for seconds in told["seconds"])
            saved = f"{100 * told['saved']['gflop']:.1f} % | {100 * told['saved']['seconds']:.1f} %"
            lines.append(f"| {name[7:]} | {each} | {saved} | {100 * told['kept']:.0f} % |")
    return "\n".join(lines) if len(lines) > 2 else ""


def others(found: dict[str, Any]) -> str:
    """What is measured besides rounds, a line each."""
    lines = ["| besides | measured |", "|---|---|"]
    told = {name: row["found"] for name, row in found.items()}
    for clients, numbers in told.get("population", {}).items():
        lines.append(
            f"| a round of 1,000 of {clients} clients | {numbers['seconds']:.2f} s, {numbers['megabytes']:.0f} MB |"
        )
    if leaks := told.get("leaks"):
        lines.append(
            f"| {leaks['rounds']:,} rounds of a tiny model | {leaks['grown_megabytes']:.1f} MB and "
            f"{leaks['grown_files']} open files more than after 1,000 |"
        )
    if costs := told.get("costs"):
        lines += _costs(costs)
    return "\n".join(lines) if len(lines) > 2 else ""


def _costs(costs: dict[str, Any]) -> list[str]:
    saved, run = costs["checkpoint_resnet18"], costs["checkpoints_cifar10"]
    lines = [
        f"| importing progfed, torch included | {costs['import_seconds']:.2f} s |",
        f"| a checkpoint of ResNet-18 (45 MB) | {saved['save_ms']:.0f} ms to save, {saved['load_ms']:.0f} ms to load |",
        f"| checkpoints in {run['rounds']} rounds of W2, at the default interval "
        f"| {100 * run['share']:.2f} % of {run['seconds']:.0f} s ({run['checkpoints']} of them) |",
    ]
    for name, seconds in costs["evaluate_1000_images"].items():
        lines.append(f"| evaluating 1,000 images with the model of {name}, one thread | {seconds:.2f} s |")
    for told in costs["codecs"]:
        lines.append(
            f"| {told['codec']} on 11.2 million numbers | {told['encode_ms']:.0f} ms to encode, "
            f"{told['decode_ms']:.0f} ms to decode ({told['encode_ratio']:.1f} and {told['decode_ratio']:.1f} copies) |"
        )
    return lines


if __name__ == "__main__":
    main()
