"""Server optimizers against their formulas, written out in NumPy over several rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from progfed.errors import UsageError
from progfed.recipe.optimizers import ServerOptimizer, fedadagrad, fedadam, fedavg, fedavgm, fedyogi, grow

DELTAS = np.array([[0.3, -0.2], [-0.1, 0.4], [0.0, 0.5]], dtype=np.float32)


def steps(optimizer: ServerOptimizer) -> np.ndarray:
    state = optimizer.init({"w": torch.zeros(2)})
    taken = []
    for delta in DELTAS:
        step, state = optimizer.update({"w": torch.from_numpy(delta)}, state)
        taken.append(step["w"].numpy())
    return np.stack(taken)


def test_fedavg_is_the_identity_on_the_mean_update() -> None:
    assert np.array_equal(steps(fedavg()), DELTAS)
    assert np.allclose(steps(fedavg(0.5)), DELTAS / 2)


def test_fedavgm_adds_up_past_updates() -> None:
    momentum, expected = np.zeros(2), []
    for delta in DELTAS:
        momentum = 0.9 * momentum + delta
        expected.append(0.5 * momentum)
    assert np.allclose(steps(fedavgm(0.5, 0.9)), expected, atol=1e-7)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_adaptive_optimizers_follow_reddi_et_al(kind: str) -> None:
    lr, b1, b2, tau = 0.1, 0.8, 0.95, 0.01
    m, v, expected = np.zeros(2), np.full(2, tau**2), []
    for delta in DELTAS.astype(np.float64):
        m = b1 * m + (1 - b1) * delta
        if kind == "adam":
            v = b2 * v + (1 - b2) * delta**2
        elif kind == "yogi":
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        else:
            v = v + delta**2
        expected.append(lr * m / (np.sqrt(v) + tau))
    optimizer = {
        "adam": fedadam(lr, b1, b2, tau),
        "yogi": fedyogi(lr, b1, b2, tau),
        "adagrad": fedadagrad(lr, b1, tau),
    }[kind]
    assert np.allclose(steps(optimizer), expected, rtol=1e-5, atol=1e-7)


def test_bias_corrected_fedadam_is_torch_adam_on_the_negative_update() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    adam = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    path = []
    for delta in DELTAS:
        before = weight.detach().clone()
        weight.grad = -torch.from_numpy(delta)
        adam.step()
        path.append((weight.detach() - before).numpy())
    ours = steps(fedadam(0.1, 0.9, 0.99, 1e-3, bias_correction=True))
    assert np.allclose(ours, path, rtol=1e-4, atol=1e-6)


def test_names_that_do_not_move_keep_their_state() -> None:
    optimizer = fedadam()
    state = optimizer.init({"a": torch.zeros(1), "b": torch.zeros(1)})
    _, after = optimizer.update({"a": torch.ones(1)}, state)
    assert all(torch.equal(after[slot]["b"], state[slot]["b"]) for slot in state)
    assert not torch.equal(after["0.m"]["a"], state["0.m"]["a"])


@pytest.mark.parametrize("reset", [False, True])
def test_a_growth_keeps_or_resets_surviving_state_and_starts_new_names_anew(reset: bool) -> None:
    optimizer = fedadam(reset=reset)
    start = optimizer.init({"E1.w": torch.zeros(1), "G1.w": torch.zeros(1)})
    _, state = optimizer.update({"E1.w": torch.ones(1), "G1.w": torch.ones(1)}, start)
    grown = grow(optimizer, state, {"E1.w": torch.zeros(1), "E2.w": torch.zeros(2)})
    assert all(set(tensors) == {"E1.w", "E2.w"} for tensors in grown.values())
    kept = start if reset else state
    assert torch.equal(grown["0.m"]["E1.w"], kept["0.m"]["E1.w"])
    assert torch.equal(grown["0.m"]["E2.w"], torch.zeros(2))


def test_nonsense_is_refused() -> None:
    from progfed.recipe.optimizers import Adaptive

    with pytest.raises(UsageError, match="adam, yogi or adagrad"):
        Adaptive("sgd")
    with pytest.raises(UsageError, match="bias correction"):
        Adaptive("yogi", bias_correction=True)
