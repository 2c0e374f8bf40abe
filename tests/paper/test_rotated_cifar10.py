"""Rotated photographs: the rotation against Pillow's, and the federation against the paper's recipe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from real_data import real_data

from fedilc import Federation, train
from fedilc.config import read_experiment
from fedilc.errors import DataError
from fedilc.paper.image_benchmarks import ANGLES, rotate, rotated_cifar10
from fedilc.paper.plugin import RotatedCifar10
from fedilc.seeds import numpy_generator

Bytes = NDArray[np.uint8]
PAPER = [10, 25, 40, 60, 75, 90, -10, -40, -90]


def noise(number: int, height: int, width: int, channels: int = 3) -> Bytes:
    """Images without a black pixel, so that one moved by one place shows."""
    return np.random.default_rng(5).integers(1, 256, (number, channels, height, width), np.uint8)


def pillow(image: Bytes, angle: float) -> Bytes:
    """One image of shape (channels, height, width), turned by Pillow, a channel at a time."""
    turned = [Image.fromarray(np.ascontiguousarray(channel)).rotate(angle) for channel in image]
    return np.stack([np.asarray(channel) for channel in turned])


def pillow_in_colour(image: Bytes, angle: float) -> Bytes:
    """The same of three channels at once."""
    turned = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).rotate(angle)
    return np.asarray(turned).transpose(2, 0, 1)


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("angle", PAPER)
def test_the_papers_rotations_are_pillows(angle: float, size: int) -> None:
    images = noise(4, size, size)
    turned = rotate(images, angle)
    for before, after in zip(images, turned, strict=True):
        assert np.array_equal(after, pillow_in_colour(before, angle))


@given(angle=st.floats(-360, 360), size=st.sampled_from([16, 32]))
@example(0.0, 16)
@example(180.0, 32)
@example(270.0, 16)
@example(360.0, 16)
@example(45.0, 32)
@example(1e-20, 16)
@example(-1e-20, 16)
@example(90 + 1e-13, 16)
@example(180 - 1e-13, 32)
def test_any_rotation_is_pillows(angle: float, size: int) -> None:
    image = noise(1, size, size)
    assert np.array_equal(rotate(image, angle)[0], pillow_in_colour(image[0], angle))


@given(
    angle=st.floats(-1e9, 1e9) | st.integers(-8, 8).map(lambda quarters: 90 * quarters),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels=st.integers(1, 4),
)
def test_images_of_any_shape_are_turned_as_pillow_turns_them(
    angle: float, height: int, width: int, channels: int
) -> None:
    image = noise(1, height, width, channels)
    assert np.array_equal(rotate(image, angle)[0], pillow(image[0], angle))


def test_each_image_may_have_its_own_angle_in_any_number() -> None:
    images = noise(1100, 16, 16)
    angles = np.random.default_rng(2).uniform(-90, 90, len(images))
    turned = rotate(images, angles)
    for before, angle, after in zip(images, angles, turned, strict=True):
        assert np.array_equal(after, pillow_in_colour(before, float(angle)))


def test_a_rotation_leaves_its_images_as_they_were_and_takes_views_of_them() -> None:
    images = noise(3, 32, 32)
    before = images.copy()
    assert np.array_equal(rotate(images[:, :, ::2, ::2], 30), rotate(images[:, :, ::2, ::2].copy(), 30))
    assert np.array_equal(images, before)
    assert rotate(images[:0], 30).shape == (0, 3, 32, 32)


def numbered(number: int) -> Bytes:
    """Tiny images, each of one colour that is its number and that no rotation changes."""
    digits = np.arange(number)[:, None] // np.array([1, 256, 65536]) % 256
    return np.broadcast_to(digits.astype(np.uint8)[:, :, None, None], (number, 3, 4, 4))


def numbers(x: torch.Tensor | None) -> list[int]:
    """The numbers of such images, seen from all their pixels."""
    assert x is not None
    digits = (x * 255).round().long()
    assert (digits == digits[:, :, :1, :1]).all()
    return (digits[:, :, 0, 0] * torch.tensor([1, 256, 65536])).sum(1).tolist()


LABELS = (np.arange(50_000) * 7 % 10).astype(np.uint8)
TEST_LABELS = (np.arange(40) * 3 % 10).astype(np.uint8)


def small(seed: int = 0, **more: object) -> Federation:
    return rotated_cifar10(numbered(50_000), LABELS, numbered(40), TEST_LABELS, seed, **more)


def test_the_images_are_dealt_in_turn_to_the_nine_rotations_in_the_order_of_the_silos() -> None:
    federation = small(seed=3)
    order = numpy_generator(3, "rotated-cifar10", "shuffle").permutation(50_000).tolist()
    train, held_out = order[:30_000], order[30_000:]
    for number, silo in enumerate(federation.silos):
        hands = range(3 * number, 3 * number + 3)
        assert numbers(silo.x) == [each for hand in hands for each in train[hand::9]]
        assert numbers(silo.x_val) == [each for hand in hands for each in held_out[hand::9]]


def test_every_image_is_in_one_place_only_with_its_own_label() -> None:
    federation = small()
    parts = [part for silo in federation.silos for part in ((silo.x, silo.y), (silo.x_val, silo.y_val))]
    assert sorted(each for x, _ in parts for each in numbers(x)) == list(range(50_000))
    for x, y in parts:
        assert y.tolist() == LABELS[numbers(x)].tolist()
    assert numbers(federation.x_test) == list(range(40))
    assert federation.y_test.tolist() == TEST_LABELS.tolist()


def test_the_federation_has_the_papers_shape() -> None:
    federation = small()
    assert (federation.name, federation.loss) == ("rotated-cifar10", "multiclass")
    assert [silo.name for silo in federation.silos] == ["silo-1", "silo-2", "silo-3"]
    assert sum(len(silo) for silo in federation.silos) == 30_000
    assert [len(silo) for silo in federation.silos] == [10_002, 9_999, 9_999]
    assert federation.silos[0].x.shape[1:] == (3, 2, 2)
    assert federation.silos[0].x.dtype == torch.float32
    assert federation.silos[0].y.dtype == torch.int64


def test_each_silo_knows_the_rotation_of_each_of_its_validation_examples() -> None:
    silos = small().silos
    names = [list(dict.fromkeys(silo.domains)) for silo in silos]
    assert names == [["10°", "25°", "40°"], ["60°", "75°", "90°"], ["-10°", "-40°", "-90°"]]
    sizes = [size for silo in silos for size in Counter(silo.domains).values()]
    assert sizes == [2223, 2223, *[2222] * 7]
    assert [silo.domains for silo in silos] == [
        sorted(silo.domains, key=silo.domains.index) for silo in silos
    ]


@pytest.fixture(scope="module")
def pictures() -> tuple[Bytes, Bytes, Federation]:
    """Training images, test images, and the federation of seed 1 they make."""
    images, test_images = noise(50_000, 8, 8), noise(300, 8, 8)
    return images, test_images, rotated_cifar10(images, LABELS, test_images, LABELS[:300], seed=1)


def recipe(image: Bytes, angle: float) -> NDArray[np.float32]:
    return pillow_in_colour(image[:, ::2, ::2], angle).astype(np.float32) / 255


def test_images_are_subsampled_then_turned_by_their_rotation_then_scaled(
    pictures: tuple[Bytes, Bytes, Federation],
) -> None:
    images, _, federation = pictures
    order = numpy_generator(1, "rotated-cifar10", "shuffle").permutation(50_000)
    for part, name in ((order[:30_000], "x"), (order[30_000:], "x_val")):
        for number, (silo, angles) in enumerate(zip(federation.silos, ANGLES, strict=True)):
            turned = iter(getattr(silo, name).numpy())
            for hand, angle in enumerate(angles, 3 * number):
                dealt = part[hand::9]
                found = [next(turned) for _ in dealt]
                for row in (0, 1, len(dealt) // 2, len(dealt) - 1):
                    assert np.array_equal(found[row], recipe(images[dealt[row]], angle))


def test_each_test_image_is_turned_by_its_own_angle_of_the_range(
    pictures: tuple[Bytes, Bytes, Federation],
) -> None:
    _, test_images, federation = pictures
    angles = numpy_generator(1, "rotated-cifar10", "test").uniform(-90, 90, len(test_images)).tolist()
    assert (min(angles), max(angles)) == pytest.approx((-90, 90), abs=2)
    for image, angle, found in zip(test_images, angles, federation.x_test, strict=True):
        assert np.array_equal(found, recipe(image, angle))


def test_at_32_pixels_no_pixel_is_left_out_and_the_deal_stays(
    pictures: tuple[Bytes, Bytes, Federation],
) -> None:
    images, test_images, halved = pictures
    whole = rotated_cifar10(images, LABELS, test_images, LABELS[:300], seed=1, size=32)
    order = numpy_generator(1, "rotated-cifar10", "shuffle").permutation(50_000)
    for number, (silo, other, angles) in enumerate(zip(whole.silos, halved.silos, ANGLES, strict=True)):
        first = order[:30_000][3 * number :: 9][0]
        turned = pillow_in_colour(images[first], angles[0]).astype(np.float32) / 255
        assert np.array_equal(silo.x[0], turned)
        assert torch.equal(silo.y, other.y)
        assert silo.domains == other.domains
    assert whole.x_test.shape == (300, 3, 8, 8)


def test_a_range_of_one_angle_turns_every_test_image_by_it() -> None:
    test_images = noise(5, 4, 4)
    federation = rotated_cifar10(numbered(50_000), LABELS, test_images, TEST_LABELS[:5], test_range=(90, 90))
    upright = rotated_cifar10(numbered(50_000), LABELS, test_images, TEST_LABELS[:5], test_range=(0, 0))
    assert torch.equal(federation.x_test, torch.rot90(upright.x_test, 1, (2, 3)))


def test_a_subset_is_the_first_of_each_deal_and_leaves_the_test_whole() -> None:
    whole, part = small(), small(subset=0.1)
    assert sum(len(silo) for silo in part.silos) == 3_000
    assert sum(len(silo.domains) for silo in part.silos) == 2_000
    for few, all_ in zip(part.silos, whole.silos, strict=True):
        assert set(numbers(few.x)) <= set(numbers(all_.x))
        assert set(numbers(few.x_val)) <= set(numbers(all_.x_val))
    assert torch.equal(part.x_test, whole.x_test)


def test_one_seed_gives_the_same_bits_and_another_gives_others() -> None:
    first, again, other = small(1), small(1), small(2)
    assert torch.equal(first.silos[2].x_val, again.silos[2].x_val)
    assert torch.equal(first.x_test, again.x_test)
    assert not torch.equal(first.silos[2].x_val, other.silos[2].x_val)


def test_silos_may_have_any_number_of_rotations() -> None:
    federation = small(angles=[[0], [12.5, -3, 7, 8]])
    assert [len(silo) for silo in federation.silos] == [6_000, 24_000]
    assert list(dict.fromkeys(federation.silos[1].domains)) == ["12.5°", "-3°", "7°", "8°"]


def test_other_images_than_cifar10s_are_refused() -> None:
    with pytest.raises(DataError, match=r"needs CIFAR-10's 50,000 training images, not 40$"):
        rotated_cifar10(numbered(40), TEST_LABELS, numbered(40), TEST_LABELS)


def test_the_shipped_experiment_has_the_papers_settings() -> None:
    experiment, _ = read_experiment("rotated-cifar10")
    assert experiment.data == RotatedCifar10()
    assert experiment.data.angles == [list(angles) for angles in ANGLES]
    assert experiment.model.name == "cnn"
    chosen = (experiment.learning_rate, experiment.weight_decay, experiment.penalty_weight)
    assert (*chosen, experiment.rounds, experiment.environment_size) == (1e-4, 0.001, 1.0, 301, 64)


def test_the_real_photographs_make_the_papers_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDILC_DATA", str(real_data("cifar-10")))
    federation = RotatedCifar10(subset=0.1).build(0, Path())
    assert federation.x_test.shape == (10_000, 3, 16, 16)
    assert federation.y_test.bincount().tolist() == [1000] * 10
    assert [silo.x.shape[1:] for silo in federation.silos] == [(3, 16, 16)] * 3
    federation.check_classes(10)


def test_an_experiment_with_data_size_32_trains_the_cnn_on_whole_photographs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDILC_DATA", str(real_data("cifar-10")))
    changes = ["data.size=32", "data.subset=0.002", "rounds=1", "environment_size=10"]
    experiment, home = read_experiment("rotated-cifar10", changes)
    federation = experiment.data.build(0, home)
    assert [silo.x.shape[1:] for silo in federation.silos] == [(3, 32, 32)] * 3
    small_test = Federation(
        "few", federation.silos, federation.x_test[:20], federation.y_test[:20], "multiclass"
    )
    model = experiment.model.build(federation, 0)
    history = train(small_test, model, experiment.algorithm, **experiment.options()).history
    assert 1.5 < history[0]["train_loss"] < 3.5
