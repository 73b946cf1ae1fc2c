"""The sentence at the end of a comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from progfed.report.verdict import Side, Verdict, difference


def side(run: str, rounds: int, sent: int, *metrics: float) -> Side:
    def summary(seed: int, metric: float) -> dict[str, Any]:
        cost = {"down_bytes": sent // 2, "up_bytes": sent - sent // 2}
        return {"run": run, "seed": seed, "rounds": rounds, "metric": metric, "cost": cost}

    return Side.of([summary(seed, metric) for seed, metric in enumerate(metrics)])


def verdict(whole: list[float], growing: list[float], equal: list[float], **options: bool) -> Verdict:
    sides = side("e", 50, 1000, *whole), side("p", 50, 700, *growing), side("b", 35, 700, *equal)
    return Verdict(*sides, **options)


CASES: list[tuple[tuple[list[float], list[float], list[float]], str]] = [
    (
        ([86.0], [85.5], [83.0]),
        "At equal bytes growing beats end-to-end training (35 rounds) by 2.50 points (85.50 % against 83.00 %); "
        "against end-to-end training over all 50 rounds, 86.00 %, growing lost 0.50 points, at 70.0 % of its bytes "
        "(one seed).",
    ),
    (
        ([80.0], [81.0], [82.0]),
        "At equal bytes end-to-end training (35 rounds) beats growing by 1.00 points (82.00 % against 81.00 %); "
        "against end-to-end training over all 50 rounds, 80.00 %, growing gained 1.00 points, at 70.0 % of its bytes "
        "(one seed).",
    ),
    (
        ([80.0, 82.0], [81.0, 81.0], [79.5, 82.0]),
        "At equal bytes growing and end-to-end training (35 rounds) differ by 0.25 points, within the spread over "
        "seeds (81.00 ± 0.00 % against 80.75 ± 1.77 %); against end-to-end training over all 50 rounds, "
        "81.00 ± 1.41 %, growing lost nothing, at 70.0 % of its bytes.",
    ),
]


@pytest.mark.parametrize(("metrics", "expected"), CASES)
def test_one_sentence_says_who_won_and_by_how_much(metrics: Any, expected: str) -> None:
    found = verdict(*metrics)
    assert found.sentence() == expected
    assert found.as_json()["sentence"] == expected


def test_a_run_beside_the_comparison_is_told_with_how_many_times_fewer_bytes_it_took() -> None:
    sides = side("e", 50, 1000, 86.0), side("p", 50, 700, 85.5), side("b", 35, 700, 83.0)
    found = Verdict(*sides, beside=(side("small", 50, 20, 85.75),))
    assert found.sentence().endswith(
        "(one seed). Against the same, small (85.75 %) lost 0.25 points, at 2.0 % of its bytes: 50 times fewer."
    )
    assert [one["run"] for one in found.as_json()["beside"]] == ["small"]


def test_a_difference_is_within_the_spread_where_it_is_smaller_than_the_larger_deviation() -> None:
    ours, theirs = side("p", 5, 10, 80.0, 80.2), side("e", 5, 10, 79.0, 81.0)
    assert difference(ours, theirs).within_spread
    assert not difference(side("p", 5, 10, 90.0, 90.2), theirs).within_spread
    assert not difference(side("p", 5, 10, 80.1), side("e", 5, 10, 80.0)).within_spread  # one seed has no spread


def test_where_lower_is_better_the_lower_one_wins() -> None:
    found = verdict([2.0], [1.0], [1.5], higher_is_better=False)
    assert found.at_equal_bytes.gain == 0.5
    assert "growing beats end-to-end training (35 rounds) by 0.50 points" in found.sentence()


def test_an_error_is_told_in_its_own_unit() -> None:
    found = verdict([2.0], [1.0], [1.5], higher_is_better=False)
    assert (
        "growing beats end-to-end training (35 rounds) by 0.5 mm (1 mm against 1.5 mm)"
        in replace(found, unit="mm").sentence()
    )
