"""Augmentation against independent NumPy oracles, one image at a time."""

import numpy as np
import pytest
import torch

from progfed import rng
from progfed.data import augment
from progfed.errors import DataError
from progfed.population import Examples


def coded(number: int, height: int, width: int) -> Examples:
    """Bytes that tell where they were: channel 0 is the row + 1, channel 1 the column + 1, channel 2 the image + 1."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    images = torch.stack([torch.stack([rows, columns, torch.full_like(rows, i)]) for i in range(number)]) + 1
    return Examples(images.to(torch.uint8), torch.arange(number))


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (24, 0), (5, 1)])
def test_a_crop_is_one_window_of_the_padded_image_and_every_place_occurs(size: int, padding: int) -> None:
    examples = coded(250, 32, 32)
    cropped = augment.random_crop(size, padding=padding)(examples, rng.generator(0))
    assert cropped.inputs.shape == (250, 3, size, size)
    assert cropped.inputs.dtype == torch.uint8
    padded = np.pad(examples.inputs.numpy(), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    places = 32 + 2 * padding - size + 1
    seen: set[int] = set()
    for image, whole in zip(cropped.inputs.numpy(), padded, strict=True):
        inside = np.argwhere(image[0] > 0)[0]
        top, left = (int(image[axis][tuple(inside)]) - 1 + padding - int(inside[axis]) for axis in (0, 1))
        assert 0 <= top < places
        assert 0 <= left < places
        seen.add(top)
        assert (image == whole[:, top : top + size, left : left + size]).all()
    assert seen == set(range(places))
    assert torch.equal(cropped.targets, examples.targets)


def test_a_flip_mirrors_about_half_of_the_images_and_leaves_the_rest() -> None:
    examples = coded(400, 4, 6)
    flipped = augment.random_flip()(examples, rng.generator(1)).inputs
    same = (flipped == examples.inputs).flatten(1).all(1)
    mirrored = (flipped == examples.inputs.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 140 < int(mirrored.sum()) < 260


@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 12)])
def test_a_rotation_takes_every_pixel_from_its_nearest_place_around_the_centre(height: int, width: int) -> None:
    examples = coded(30, height, width)
    turned = augment.random_rotation(15.0)(examples, rng.generator(3)).inputs
    assert turned.dtype == torch.uint8
    angles = torch.empty(30).uniform_(-15.0, 15.0, generator=rng.generator(3)).deg2rad().double().numpy()
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    for image, angle in zip(turned.numpy(), angles, strict=True):
        for row, column in np.ndindex(height, width):
            down, right = np.array([row, column]) - middle
            there = np.array(
                [np.sin(angle) * right + np.cos(angle) * down, np.cos(angle) * right - np.sin(angle) * down]
            )
            place = there + middle
            if (np.abs(place - np.floor(place) - 0.5) < 1e-3).any():
                continue  # as near to one pixel as to the next
            nearest = np.rint(place).astype(int)
            inside = (nearest >= 0).all() and (nearest < [height, width]).all()
            assert image[:2, row, column].tolist() == ((nearest + 1).tolist() if inside else [0, 0])


def test_no_rotation_and_no_jitter_leave_crops_and_flips() -> None:
    examples = coded(8, 32, 32)
    made = augment.cifar_training(augment.CIFAR100, jitter=0.0)(examples, rng.generator(2))
    plain = augment.compose(augment.random_crop(32, padding=4), augment.random_flip())(examples, rng.generator(2))
    assert torch.equal(made.inputs, augment.normalised(plain.inputs, augment.CIFAR100))


def jittered(image: np.ndarray, order: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Brightness (0), contrast (1) and saturation (2) of one image, as written in their definitions."""
    for kind, factor in zip(order, factors, strict=True):
        grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        if kind == 0:
            image = image * factor
        elif kind == 1:
            image = factor * image + (1 - factor) * grey.mean()
        else:
            image = factor * image + (1 - factor) * grey[None]
        image = np.clip(image, 0, 1)
    return image


def test_colour_jitter_equals_the_three_blends_in_the_drawn_order_for_each_image() -> None:
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=rng.generator(2))
    result = augment.colour_jitter(0.4)(Examples(images, torch.zeros(64)), rng.generator(3)).inputs
    draws = rng.generator(3)
    factors = torch.empty(3, 64, 1, 1, 1).uniform_(0.6, 1.4, generator=draws).view(3, 64).numpy().astype(np.float64)
    order = torch.rand(3, 64, 1, 1, 1, generator=draws).argsort(0).view(3, 64).numpy()
    assert len({tuple(column) for column in order.T}) == 6
    for i in range(64):
        expected = jittered(images[i].numpy() / 255.0, order[:, i], factors[:, i])
        np.testing.assert_allclose(result[i].numpy(), expected, atol=2e-6)


def test_jitter_of_strength_zero_changes_nothing_and_never_writes_into_its_input() -> None:
    images = torch.rand(5, 3, 4, 4, generator=rng.generator(4))
    before = images.clone()
    kept = augment.colour_jitter(0.0)(Examples(images, torch.zeros(5)), rng.generator(0)).inputs
    torch.testing.assert_close(kept, before)
    augment.colour_jitter(0.9)(Examples(images, torch.zeros(5)), rng.generator(0))
    augment.normalised(images, augment.CIFAR10)
    assert torch.equal(images, before)


@pytest.mark.parametrize("scale", [1, 255])
def test_normalising_bytes_and_floats_gives_the_same(scale: int) -> None:
    images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8, generator=rng.generator(5))
    given = images if scale == 255 else images.float() / 255
    expected = (images.double().numpy() / 255 - np.reshape(augment.CIFAR100[0], (1, 3, 1, 1))) / np.reshape(
        augment.CIFAR100[1], (1, 3, 1, 1)
    )
    np.testing.assert_allclose(augment.normalised(given, augment.CIFAR100).numpy(), expected, atol=1e-5)


def test_the_training_pipelines_give_floats_of_the_sizes_of_the_paper() -> None:
    examples = coded(6, 32, 32)
    ten = augment.cifar_training(augment.CIFAR10)(examples, rng.generator(6))
    hundred = augment.cifar_training(augment.CIFAR100, crop=24, padding=0)(examples, rng.generator(6))
    assert ten.inputs.shape == (6, 3, 32, 32)
    assert hundred.inputs.shape == (6, 3, 24, 24)
    assert ten.inputs.dtype == hundred.inputs.dtype == torch.float32


def test_the_same_generator_key_gives_the_same_batch_and_another_key_another() -> None:
    examples, run = coded(9, 32, 32), augment.cifar_training(augment.CIFAR10)
    once, again, other = (run(examples, rng.generator(7, "augment", 3, client)).inputs for client in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


@pytest.mark.parametrize("regions", [True, False])
def test_volumes_and_their_targets_are_cropped_and_flipped_together(regions: bool) -> None:
    volume = torch.arange(6 * 7 * 8).view(1, 1, 6, 7, 8).repeat(200, 2, 1, 1, 1)
    volume[:, 1] += 1000
    targets = volume[:, :1].repeat(1, 3, 1, 1, 1) if regions else volume[:, 0]
    run = augment.volume_training((4, 5, 6), flips=True)
    assert run is not None
    result = run(Examples(volume.float(), targets), rng.generator(8))
    assert result.inputs.shape == (200, 2, 4, 5, 6)
    assert result.targets.shape == ((200, 3, 4, 5, 6) if regions else (200, 4, 5, 6))
    shown = result.targets[:, 2] if regions else result.targets
    assert torch.equal(result.inputs[:, 0], shown.float())
    assert torch.equal(result.inputs[:, 1], shown.float() + 1000)
    steps = {
        tuple(torch.stack([shown[i].diff(dim=axis).unique() for axis in (0, 1, 2)]).flatten().tolist())
        for i in range(200)
    }
    assert steps == {(a, b, c) for a in (-56, 56) for b in (-8, 8) for c in (-1, 1)}  # all eight mirror images occur
    assert set(shown.amin((1, 2, 3)).tolist()) == {
        56 * z + 8 * y + x for z in range(3) for y in range(3) for x in range(3)
    }


def test_no_volume_augmentation_is_none_and_a_crop_that_does_not_fit_is_refused() -> None:
    assert augment.volume_training(None, flips=False) is None
    with pytest.raises(DataError, match=r"\(9, 9\) does not fit into \(8, 8\)"):
        augment.random_crop(9)(coded(1, 8, 8), rng.generator(0))
