"""Digits whose colour misleads: the colouring, and the federation embedded in the package."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from fedilc import Federation, Silo
from fedilc.data.benchmarks.color_mnist import color_digits, color_digits_shift, color_mnist, colour, moved
from fedilc.data.benchmarks.digits import read_digits
from fedilc.errors import ConfigError, DataError


def digits(number: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(11)
    images = random.uniform(0.1, 1.0, (number, 2, 2)).astype(np.float32)
    return images, random.integers(0, 10, number)


def shown(x: Tensor) -> Tensor:
    """The channel that shows the digit: its colour."""
    return x.flatten(2).abs().sum(2).argmax(1)


def coloured(flip: float, label_flip: float = 0.0, number: int = 500) -> tuple[Tensor, Tensor]:
    return colour(*digits(number), flip, np.random.default_rng(7), label_flip)


def test_a_digit_is_in_the_channel_of_its_colour_and_the_other_channel_is_zero() -> None:
    x, _ = coloured(0.4)
    images, _ = digits(500)
    colours = shown(x)
    rows = torch.arange(500)
    assert torch.equal(x[rows, colours], torch.from_numpy(images))
    assert not x[rows, 1 - colours].any()
    assert set(colours.tolist()) == {0, 1}


def test_the_label_is_one_for_digits_below_five() -> None:
    _, y = coloured(0.4)
    assert y.tolist() == (digits(500)[1] < 5).astype(float).tolist()


@pytest.mark.parametrize(("flip", "colour_of_ones"), [(0.0, 1), (1.0, 0)])
def test_the_colour_is_the_label_without_flips_and_its_opposite_with_all(
    flip: float, colour_of_ones: int
) -> None:
    x, y = coloured(flip)
    assert torch.equal((shown(x) == colour_of_ones).float(), y)


def test_a_label_flip_turns_the_label_over_and_the_colour_follows_it() -> None:
    x, y = coloured(0.0, label_flip=1.0)
    assert y.tolist() == (digits(500)[1] >= 5).astype(float).tolist()
    assert torch.equal(shown(x).float(), y)


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
def test_as_many_colours_and_labels_flip_as_asked(rate: float) -> None:
    number = 20_000
    four_sigma = 4 * math.sqrt(rate * (1 - rate) / number)
    x, y = coloured(rate, number=number)
    assert (shown(x) != y).double().mean().item() == pytest.approx(rate, abs=four_sigma)
    _, y = coloured(0.0, rate, number)
    true = torch.from_numpy(digits(number)[1] < 5)
    assert (y != true).double().mean().item() == pytest.approx(rate, abs=four_sigma)


def test_colouring_leaves_its_images_as_they_were() -> None:
    images, labels = digits(50)
    before = images.copy()
    colour(images, labels, 0.5, np.random.default_rng(0))
    assert np.array_equal(images, before)


def parts(federation: Federation) -> list[Tensor]:
    silos = [part for silo in federation.silos for part in (silo.x, silo.y, silo.x_val, silo.y_val)]
    return [*silos, federation.x_test, federation.y_test]


def held_out(silo: Silo) -> int:
    assert silo.x_val is not None
    return len(silo.x_val)


def test_color_digits_has_five_silos_of_200_with_397_for_validation_and_400_for_the_test() -> None:
    federation = color_digits()
    assert [silo.name for silo in federation.silos] == [
        *("flip-0.15", "flip-0.30", "flip-0.45", "flip-0.60", "flip-0.75")
    ]
    assert [len(silo) for silo in federation.silos] == [200] * 5
    assert sorted(held_out(silo) for silo in federation.silos) == [79, 79, 79, 80, 80]
    assert federation.x_test is not None
    assert tuple(federation.x_test.shape) == (400, 2, 8, 8)
    assert federation.loss == "binary"


def test_color_digits_uses_every_image_of_scikit_learn_exactly_once() -> None:
    images = torch.cat(parts(color_digits())[::2]).sum(1)
    original = torch.from_numpy((load_digits().images / 16).astype(np.float32))
    found, wanted = (sorted(map(tuple, some.flatten(1).tolist())) for some in (images, original))
    assert found == wanted


def test_color_digits_colours_each_silo_and_the_test_by_its_own_flip() -> None:
    federation = color_digits(flips=[0.0, 1.0], test_flip=1.0, test_label_flip=0.0)
    never, always = federation.silos
    for x, y in ((never.x, never.y), (never.x_val, never.y_val)):
        assert torch.equal(shown(x).float(), y)
    for x, y in ((always.x, always.y), (always.x_val, always.y_val), (federation.x_test, federation.y_test)):
        assert torch.equal(1 - shown(x).float(), y)


def test_the_tests_label_flip_touches_the_test_only() -> None:
    true, noisy = color_digits(test_label_flip=0.0), color_digits(test_label_flip=0.15)
    flipped = (true.y_test != noisy.y_test).double().mean().item()
    assert flipped == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / 400))
    for one, other in zip(parts(true)[:-2], parts(noisy)[:-2], strict=True):
        assert torch.equal(one, other)


def test_color_digits_is_the_same_for_one_seed_and_another_for_another() -> None:
    first, again, other = (parts(color_digits(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_two_silos_may_have_one_flip_and_still_have_names_of_their_own() -> None:
    federation = color_digits(flips=[0.15, 0.3, 0.15])
    assert [silo.name for silo in federation.silos] == [
        *("silo-1-flip-0.15", "silo-2-flip-0.30", "silo-3-flip-0.15")
    ]
    first, _, third = federation.silos
    assert not torch.equal(first.x[:300], third.x[:300])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"flips": []}, "flips is empty"),
        ({"flips": [0.1, 1.5]}, "flip of 1.5 is not a probability"),
        ({"test_flip": -0.1}, "flip of -0.1 is not a probability"),
        ({"test_label_flip": float("nan")}, "flip of nan is not a probability"),
    ],
)
def test_color_digits_refuses_flips_that_are_no_probabilities(
    settings: dict[str, float | list[float]], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        color_digits(**settings)


@pytest.fixture(scope="module")
def drawn() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """As many images as MNIST has, each with its own number written into its corner pixels."""
    random = np.random.default_rng(3)
    images = random.integers(1, 256, (60_000, 28, 28), dtype=np.uint8)
    number = np.arange(60_000)
    images[:, 0, 0], images[:, 0, 2] = number % 250 + 1, number // 250 + 1
    return images, random.integers(0, 10, 60_000, dtype=np.uint8)


def numbers(x: Tensor) -> NDArray[np.int64]:
    """Which of the images these are, from the pixels that survive the subsampling."""
    pixels = (x.sum(1)[:, 0, :2] * 255).round().long().numpy()
    return (pixels[:, 0] - 1) + 250 * (pixels[:, 1] - 1)


def test_color_mnist_is_dealt_as_the_paper_says(
    drawn: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    federation = color_mnist(*drawn, seed=1)
    assert [(len(s), len(s.x_val)) for s in federation.silos] == [(8000, 2000)] * 5
    assert federation.silos[0].x.shape[1:] == (2, 14, 14)
    assert federation.x_test is not None
    assert numbers(federation.x_test).tolist() == list(range(50_000, 60_000))
    dealt = np.concatenate([numbers(part) for s in federation.silos for part in (s.x, s.x_val)])
    assert sorted(dealt.tolist()) == list(range(50_000))
    assert dealt[:100].tolist() != sorted(dealt[:100].tolist())


def test_color_mnist_labels_and_flips_are_the_papers(
    drawn: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    federation = color_mnist(*drawn)
    for silo, flip in zip(federation.silos, (0.15, 0.30, 0.45, 0.60, 0.75), strict=True):
        below_five = torch.from_numpy((drawn[1][numbers(silo.x)] < 5).astype(np.float32))
        assert torch.equal(silo.y, below_five)
        assert float((shown(silo.x) != silo.y).float().mean()) == pytest.approx(flip, abs=0.02)
    assert federation.y_test is not None
    truth = torch.from_numpy((drawn[1][50_000:] < 5).astype(np.float32))
    assert float((federation.y_test != truth).float().mean()) == pytest.approx(0.15, abs=0.015)
    assert float((shown(federation.x_test) != federation.y_test).float().mean()) == pytest.approx(
        0.9, abs=0.015
    )


def test_a_subset_takes_its_share_of_training_and_validation_and_the_whole_test(
    drawn: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> None:
    federation = color_mnist(*drawn, subset=0.1)
    assert [(len(s), len(s.x_val)) for s in federation.silos] == [(800, 200)] * 5
    assert len(federation.x_test) == 10_000
    whole = color_mnist(*drawn)
    assert set(numbers(federation.silos[0].x)) <= set(numbers(whole.silos[0].x))


def test_too_few_images_are_refused(drawn: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    with pytest.raises(DataError, match="needs the 60,000 training images of MNIST, not 100"):
        color_mnist(drawn[0][:100], drawn[1][:100])


class Still:
    """Draws that neither turn nor shift, or shift by one pixel to the right."""

    def __init__(self, right: float = 0.0) -> None:
        self.right = right

    def uniform(self, low: float, high: float, size: object) -> np.ndarray:
        found = np.zeros(size)
        if isinstance(size, tuple):
            found[:, 0] = -self.right
        return found


def test_moved_images_are_turned_and_shifted_and_no_more() -> None:
    images = read_digits()[0][:5]
    np.testing.assert_allclose(moved(images, Still()), images, atol=1e-6)
    np.testing.assert_allclose(moved(images, Still(right=1.0))[:, :, 1:], images[:, :, :-1], atol=1e-6)
    drawn = moved(images, np.random.default_rng(0))
    assert drawn.shape == images.shape
    assert 0 < np.abs(drawn - images).mean() < 0.3


def test_copies_stay_in_the_part_of_their_image_and_have_colours_and_labels_of_their_own() -> None:
    plain = color_digits_shift(3, label_flip=0.0, copies=1)
    copied = color_digits_shift(3, label_flip=0.0, copies=3)
    for one, three in zip(plain.silos, copied.silos, strict=True):
        assert three.y.tolist() == one.y.tolist() * 3
        assert three.y_val.tolist() == one.y_val.tolist() * 3
        assert torch.equal(three.x[: len(one)].sum(1), one.x.sum(1))
    assert copied.y_test.tolist() == plain.y_test.tolist() * 3
    images = [silo.x.sum(1) for silo in plain.silos] + [silo.x_val.sum(1) for silo in plain.silos]
    rows = {image.numpy().tobytes() for part in [*images, plain.x_test.sum(1)] for image in part}
    assert len(rows) > 1790  # of 1,797 images, no more than a few are alike
    noisy = color_digits_shift(3, copies=4)
    digits = torch.cat([silo.y for silo in color_digits_shift(3, label_flip=0.0, copies=4).silos])
    wrong = torch.cat([silo.y for silo in noisy.silos]) != digits
    assert 0.12 < wrong.double().mean() < 0.18
    assert not torch.equal(wrong[:250], wrong[250:500])


def test_the_colour_helps_in_every_silo_and_misleads_at_the_new_site() -> None:
    federation = color_digits_shift(0, copies=4)
    agree = [((silo.x[:, 1].sum((1, 2)) > 0) == silo.y.bool()).double().mean() for silo in federation.silos]
    assert [round(float(share), 1) for share in agree] in ([0.9, 0.9, 0.8, 0.7], [1.0, 0.9, 0.8, 0.7])
    there = ((federation.x_test[:, 1].sum((1, 2)) > 0) == federation.y_test.bool()).double().mean()
    assert there < 0.15
