"""The figure of the benchmark: how long a round takes, relative to progfed's, as an SVG of bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads import WORKLOADS

NAMES = {"floor": "kernels alone", "progfed": "progfed", "plain": "plain PyTorch", "pfl": "pfl", "flower": "Flower"}
COLOURS = {"floor": "#b8b8b8", "progfed": "#0b6e4f", "plain": "#7a9cc6", "pfl": "#c6a15b", "flower": "#b5636b"}
LEFT, WIDTH, BAR, GAP = 150, 520, 16, 26


def draw(found: dict[str, Any], path: Path) -> None:
    """One group of bars for each workload that was measured; bars that would leave the page are cut and labelled."""
    groups = [(name, found[name]["found"]) for name in WORKLOADS if name in found]
    if not groups:
        return
    parts, top = [], 34
    for name, row in groups:
        parts.append(_text(8, top, f"{name}: {row['title']}", weight="bold"))
        top += 10
        for variant in NAMES:
            if variant in row["variants"]:
                parts += _bar(variant, row["variants"][variant], top)
                top += BAR + 4
        top += GAP
    title = _text(8, 16, "Time of one federated round, relative to progfed (shorter is faster)")
    body = "\n".join([title, *parts])
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 110} {top}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="time of one federated round">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _bar(variant: str, told: dict[str, Any], top: int) -> list[str]:
    length = min(WIDTH, 180 * told["ratio"])
    label = f"{told['ratio']:.2f}  ({told['seconds']:.2f} s)"
    return [
        _text(LEFT - 8, top + 12, NAMES[variant], anchor="end"),
        f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[variant]}"/>',
        _text(LEFT + length + 6, top + 12, label),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}" fill="#222222">{text}</text>'
