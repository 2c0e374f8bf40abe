"""The federations of the digits in the package; thousands of silos are each made of a name and the seed."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from needs import needs_proc
from sklearn.datasets import load_digits
from torch import Tensor

from fedilc import Federation
from fedilc.data import Silo
from fedilc.data.embedded_data import color_digits, color_digits_shift, many_silos, read_digits

PEAK = """
import sys
from fedilc import train
from fedilc.config import read_experiment

settings, folder = read_experiment("many-silos", [f"data.silos={sys.argv[1]}", *sys.argv[2:]])
store = settings.data.store(settings.seed, folder)
train(store, settings.model.build(store, settings.seed), settings.algorithm, **settings.options())
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def shown(x: Tensor) -> Tensor:
    """The channel that shows the digit: its colour."""
    return x.flatten(2).abs().sum(2).argmax(1)


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


def same(one: Silo, other: Silo) -> bool:
    parts = ("x", "y", "x_val", "y_val")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


def test_a_silo_is_the_same_whenever_and_wherever_it_is_opened() -> None:
    store = many_silos(5, silos=40)
    first = store.open("silo-07")
    store.open("silo-08")
    assert same(first, store.open("silo-07"))
    assert same(first, many_silos(5, silos=40).open("silo-07"))
    assert not same(first, store.open("silo-08"))
    assert not same(first, many_silos(6, silos=40).open("silo-07"))


def test_a_silo_is_what_the_store_says_of_it() -> None:
    store = many_silos(0, silos=10_000, examples=6, validation=3)
    assert len(store.silos) == 10_000
    assert (store.silos[0], store.silos[-1]) == ("silo-0000", "silo-9999")
    assert not store.resident
    silo = store.open("silo-1234")
    assert silo.x_val is not None
    assert (len(silo), store.sizes["silo-1234"], len(silo.x_val)) == (6, 6, 3)
    assert tuple(silo.x.shape[1:]) == store.inputs == (2, 8, 8)


def test_no_image_of_the_test_set_is_in_a_silo() -> None:
    store = many_silos(0, silos=30)
    assert store.x_test is not None
    assert len(store.x_test) == 400

    def images(x: Tensor) -> set[bytes]:
        return {image.amax(0).numpy().tobytes() for image in x}

    pixels, _ = read_digits()
    twice = images(torch.from_numpy(pixels[:400]).unsqueeze(1)) & images(
        torch.from_numpy(pixels[400:]).unsqueeze(1)
    )
    assert not twice, "the digits themselves hold an image twice"
    seen = set().union(*(images(store.open(name).x) for name in store.silos))
    assert len(seen) > 200
    assert not seen & images(store.x_test)


def test_colours_mislead_in_each_silo_by_its_own_measure_and_most_in_the_test_set() -> None:
    store = many_silos(0, silos=20, examples=400)

    def misled(x: Tensor, y: Tensor) -> float:
        return float((shown(x) != y.long()).double().mean())

    shares = [misled(silo.x, silo.y) for silo in map(store.open, store.silos)]
    assert min(shares) > 0.02
    assert max(shares) < 0.88
    assert max(shares) - min(shares) > 0.3
    assert store.x_test is not None
    assert store.y_test is not None
    assert misled(store.x_test, store.y_test) > 0.85


def test_silos_may_go_without_validation() -> None:
    assert many_silos(0, silos=2, validation=0).open("silo-0").x_val is None


def peak_kilobytes(silos: int, *settings: str) -> int:
    """The largest resident set of a fresh process that trains over so many silos."""
    command = [sys.executable, "-c", PEAK, str(silos), *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@needs_proc
def test_ten_thousand_silos_take_the_memory_of_a_hundred() -> None:
    few = peak_kilobytes(100, "silos_per_round=none", "rounds=2")
    many = peak_kilobytes(10_000, "silos_per_round=2000", "rounds=1")
    assert many < 1.1 * few
