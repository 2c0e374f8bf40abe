"""Thousands of silos: each made of its name and the seed, and none of them kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from needs import needs_proc

from fedilc.config.section import validated
from fedilc.config.sources import ManySilos
from fedilc.data import Silo
from fedilc.data.benchmarks.digits import read_digits
from fedilc.data.benchmarks.many_silos import TEST, many_silos
from fedilc.errors import ConfigError

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
    assert len(store.x_test) == TEST

    def images(x: torch.Tensor) -> set[bytes]:
        return {image.amax(0).numpy().tobytes() for image in x}

    pixels, _ = read_digits()
    twice = images(torch.from_numpy(pixels[:TEST]).unsqueeze(1)) & images(
        torch.from_numpy(pixels[TEST:]).unsqueeze(1)
    )
    assert not twice, "the digits themselves hold an image twice"
    seen = set().union(*(images(store.open(name).x) for name in store.silos))
    assert len(seen) > 200
    assert not seen & images(store.x_test)


def test_colours_mislead_in_each_silo_by_its_own_measure_and_most_in_the_test_set() -> None:
    store = many_silos(0, silos=20, examples=400)

    def misled(x: torch.Tensor, y: torch.Tensor) -> float:
        colour = x.flatten(2).sum(2).argmax(1)
        return float((colour != y.long()).double().mean())

    shares = [misled(silo.x, silo.y) for silo in map(store.open, store.silos)]
    assert min(shares) > 0.02
    assert max(shares) < 0.88
    assert max(shares) - min(shares) > 0.3
    assert store.x_test is not None
    assert store.y_test is not None
    assert misled(store.x_test, store.y_test) > 0.85


def test_silos_may_go_without_validation() -> None:
    assert many_silos(0, silos=2, validation=0).open("silo-0").x_val is None


def test_a_section_without_silos_is_refused() -> None:
    with pytest.raises(ConfigError, match="silos"):
        validated(ManySilos, {"silos": 0})


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
