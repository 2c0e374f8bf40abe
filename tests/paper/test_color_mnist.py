"""Digits whose colour misleads: the colouring, the moved copies, and the paper's Color-MNIST."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.data.embedded_data import colour, moved, read_digits
from fedilc.errors import DataError
from fedilc.paper.image_benchmarks import color_mnist


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
