"""Freed memory stays in the process while gradients are computed, and goes back to the system afterwards."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch
from computations import computation_of

from fedilc import Silo
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.models import build_model
from fedilc.penalties import Fishr

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory"
)

_CYCLE = """
import resource
from fedilc.gradients.fast_linear import keep_freed_memory
import torch

class Owner: ...

def runner():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

owner = Owner()
keep_freed_memory(owner)
torch.ones(50 << 20)
kept = runner()
del owner
print(kept - runner())
"""


def computation(images: int, chunk_bytes: int) -> SiloComputation:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, 3, 16, 16, generator=generator)
    silo = Silo("s", x, torch.randint(0, 10, (images,), generator=generator))
    runner = ModelRunner(
        build_model("cnn", (3, 16, 16), 10, seed=0), Loss("multiclass"), chunk_bytes=chunk_bytes
    )
    return computation_of(runner, silo, penalty=Fishr())


@needs_glibc
def test_gradients_after_the_first_take_their_memory_from_the_process() -> None:
    work = computation(images=256, chunk_bytes=24 << 20)
    pages = []
    for number in range(1, 6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        work.gradients(number)
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    activations = 256 * work.runner.example_bytes(work.x)
    assert min(pages[1:]) * resource.getpagesize() < activations / 10


@needs_glibc
def test_memory_goes_back_to_the_system_with_its_last_user() -> None:
    done = subprocess.run([sys.executable, "-c", _CYCLE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 150 << 20


@pytest.mark.parametrize("keep_bytes", [0, 40 << 20, 1 << 30])
def test_what_is_kept_between_the_steps_changes_no_bit(keep_bytes: int) -> None:
    reference, work = computation(120, 8 << 20), computation(120, 8 << 20)
    vector = torch.full_like(reference.statistics(1, 0), 0.01)
    assert torch.equal(work.statistics(1, keep_bytes), reference.statistics(1, 0))
    assert work.kept_bytes <= keep_bytes
    assert (work.kept_bytes > 0) == (keep_bytes > 0)
    ours, theirs = work.gradients(1, vector), reference.gradients(1, vector)
    assert work.kept_bytes == 0
    for name, value in theirs.gradient.items():
        assert torch.equal(ours.gradient[name], value)
        assert torch.equal(ours.penalty_gradient[name], theirs.penalty_gradient[name])
