"""Partitions: exact, seeded, nobody empty; and each has the shape its definition promises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from progfed.data import partition
from progfed.data.pachinko import _pick, pachinko
from progfed.errors import DataError, UsageError

SPECS = ("iid", "shards:1", "shards:2", "dirichlet:0.001", "dirichlet:0.1", "dirichlet:100", "pachinko")


def labels_of(number: int, classes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, number))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS), st.integers(2, 200), st.integers(1, 20), st.integers(1, 12), st.integers(0, 5))
def test_every_partition_gives_each_example_to_exactly_one_client_and_leaves_nobody_empty(
    spec: str, number: int, clients: int, classes: int, seed: int
) -> None:
    per_client = 2 if spec == "shards:2" else 1
    labels = labels_of(number, classes, seed)
    if clients * per_client > number:
        with pytest.raises(UsageError, match="cannot be shared"):
            partition.split(spec, labels, clients, seed=seed, groups=labels // 5)
        return
    parts = partition.split(spec, labels, clients, seed=seed, groups=labels // 5)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(number))
    assert all(torch.equal(part, part.sort().values) for part in parts)


@pytest.mark.parametrize("spec", SPECS)
def test_a_partition_is_a_function_of_its_seed(spec: str) -> None:
    labels = labels_of(300, 10, 0)
    once, again, other = (partition.split(spec, labels, 7, seed=seed, groups=labels // 5) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("spec", ["iid", "shards:3", "pachinko"])
def test_sizes_differ_by_no_more_than_the_definition_allows(spec: str) -> None:
    labels = labels_of(1003, 10, 3)
    sizes = [len(part) for part in partition.split(spec, labels, 17, groups=labels // 5)]
    assert max(sizes) - min(sizes) <= (3 if spec == "shards:3" else 1)


def test_shards_of_equal_classes_give_a_client_exactly_as_many_labels_as_shards() -> None:
    labels = torch.arange(10).repeat_interleave(40)
    parts = partition.shards(labels, 20, per_client=2, seed=4)  # 40 shards of 10: each inside one class
    assert all(len(labels[part].unique()) <= 2 and len(part) == 20 for part in parts)


def test_a_large_alpha_approaches_equal_shares_and_a_tiny_one_gives_a_class_to_one_client() -> None:
    labels = torch.arange(4).repeat_interleave(1000)
    even = partition.dirichlet(labels, 10, alpha=1e6, seed=0)
    counts = torch.stack([labels[part].bincount(minlength=4) for part in even])
    assert int((counts - 100).abs().max()) <= 1
    lumps = partition.dirichlet(labels, 10, alpha=1e-6, seed=0)
    counts = torch.stack([labels[part].bincount(minlength=4) for part in lumps])
    assert bool((counts.max(0).values >= 1000 - 10).all())


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution() -> None:
    clients, alpha = 5, 0.5
    labels = torch.arange(400).repeat_interleave(500)
    parts = partition.dirichlet(labels, clients, alpha=alpha, seed=9)
    shares = torch.stack([labels[part].bincount(minlength=400) for part in parts]).double() / 500
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.mean(1).sub(1 / clients).abs().max() < 4 * (variance / 400) ** 0.5
    assert abs(float(shares.var(1).mean()) - variance) < 0.15 * variance


def test_an_empty_client_is_given_the_last_example_of_the_largest() -> None:
    owner = np.array([0, 0, 0, 2, 2])
    partition._fill(owner, 4)
    # client 1 takes from client 0's three; then 0 and 2 tie at two, and the first of them gives to client 3
    assert owner.tolist() == [0, 3, 1, 2, 2]


def test_natural_clients_are_the_sorted_ids() -> None:
    parts = partition.natural(["b", "a", "b", "c", "a"])
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2], [3]]


def concentration(counts: np.ndarray) -> tuple[float, float]:
    """The mean share of a client's largest coarse class, and of the largest fine class in coarse ones of 20 or more."""
    coarse = counts.reshape(len(counts), 20, 5)
    big = coarse[coarse.sum(2) >= 20]
    return float(coarse.sum(2).max(1).mean() / 100), float((big.max(1) / big.sum(1)).mean())


def test_pachinko_is_an_exact_split_of_equal_clients() -> None:
    fine = np.repeat(np.arange(100), 50)
    owner = pachinko(fine, fine // 5, 50, seed=1)
    counts = np.stack([np.bincount(fine[owner == client], minlength=100) for client in range(50)])
    assert (counts.sum(1) == 100).all()
    assert (counts.sum(0) == 50).all()


def test_pachinko_clients_match_dirichlet_multinomials_until_a_class_is_used_up() -> None:
    """The first ten clients of ten seeds against a plain simulation in which nothing ever runs out."""
    fine = np.repeat(np.arange(100), 100)
    rows = []
    for seed in range(10):
        owner = pachinko(fine, fine // 5, 100, seed=seed)
        first = np.stack([np.bincount(fine[owner == client], minlength=100) for client in range(10)])
        assert int(first.sum(0).max()) < 100  # no class is used up yet, so the multinomials decided alone
        rows.append(first)
    draw = np.random.default_rng(0)
    free = []
    for _ in range(4000):
        shares = draw.dirichlet(np.full(20, 0.1))[:, None] * draw.dirichlet(np.full(5, 10.0), 20)
        free.append(draw.multinomial(100, shares.flatten()))
    (coarse, inside), (coarse_free, inside_free) = concentration(np.concatenate(rows)), concentration(np.array(free))
    assert abs(coarse - coarse_free) < 0.07  # four standard errors of 100 clients, .017 each
    assert abs(inside - inside_free) < 0.02


def test_pachinko_draws_coarse_classes_in_the_proportions_of_its_multinomial() -> None:
    """With far more examples than are used up, the first client's counts follow its own weights."""
    weights = np.array([0.7, 0.0, 0.3])
    draws = np.random.default_rng(0).random(20_000)
    picks = np.bincount([_pick(weights, [True, True, True], d) for d in draws], minlength=3) / 20_000
    assert np.abs(picks - weights).max() < 0.015
    assert {_pick(weights, [False, True, True], d) for d in draws[:200]} == {2}
    assert {_pick(np.zeros(3), [True, False, True], d) for d in draws[:200]} == {0, 2}
    assert _pick(np.array([0.1, 0.2, 0.0]), [True, True, True], np.nextafter(1.0, 0)) == 1


def test_pachinko_refuses_labels_that_are_not_a_tree() -> None:
    with pytest.raises(DataError, match="two coarse classes"):
        pachinko(np.array([0, 0]), np.array([0, 1]), 1)


@pytest.mark.parametrize(
    "spec", ["random", "iid:3", "shards:0", "shards:1.5", "dirichlet:-1", "dirichlet:x", "pachinko"]
)
def test_an_unknown_partition_is_refused_with_the_known_ones(spec: str) -> None:
    with pytest.raises(UsageError, match=r"iid, shards:N, dirichlet:ALPHA"):
        partition.split(spec, labels_of(50, 3, 0), 4)
