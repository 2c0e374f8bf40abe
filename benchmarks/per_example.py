"""Every example a vote: against one plain backward pass, and against chunked vmap."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from benchmarks.federations import color_mnist_like, color_mnist_mlp
from benchmarks.processes import memory
from benchmarks.timing import Row, at_least, at_most, medians
from fedilc.aggregation import WeightedGeometricMean
from fedilc.data import LossName, Silo
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.models import build_model


def voter(model: nn.Module, loss: LossName, silo: Silo) -> SiloComputation:
    """A silo in which every example is an environment."""
    runner = ModelRunner(model, Loss(loss))
    x, y = runner.inputs(silo.x), runner.labels(silo.y)
    return SiloComputation(runner, silo.name, x, y, 1, WeightedGeometricMean(), seed=0)


def vote(computation: SiloComputation) -> dict[str, Tensor]:
    """The weighted geometric mean over its examples."""
    return computation.gradients(1).gradient


def plain(computation: SiloComputation) -> None:
    """One forward and one backward pass over the whole silo."""
    model = computation.runner.model
    loss = computation.runner.loss
    value = loss.per_example(loss.logits(model(computation.x)), computation.y).mean()
    torch.autograd.grad(value, list(model.parameters()))


def vmapped(model: nn.Module, x: Tensor, y: Tensor, chunk: int) -> dict[str, Tensor]:
    """Per-example gradients by chunked vmap, summed as logarithms with masks."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def value(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    each = vmap(grad(value), in_dims=(None, 0, 0))
    sums = {name: [torch.zeros_like(w) for _ in range(4)] for name, w in weights.items()}
    for x_part, y_part in zip(x.split(chunk), y.split(chunk), strict=True):
        for name, gradients in each(weights, x_part, y_part).items():
            logs = gradients.abs().clamp(min=1e-45).log()
            for place, mask in ((0, gradients > 0), (2, gradients < 0)):
                sums[name][place] += mask.sum(0)
                sums[name][place + 1] += (logs * mask).sum(0)
    return {
        name: (up * (log_up / up.clamp(min=1)).exp() - down * (log_down / down.clamp(min=1)).exp()) / len(x)
        for name, (up, log_up, down, log_down) in sums.items()
    }


def rows(quick: bool) -> list[Row]:
    """The CNN against vmap, the MLP against a backward pass, and its memory."""
    cnn = _cnn_row(100 if quick else 1000)
    examples = 2000 if quick else 8000
    mlp = voter(color_mnist_mlp(), "binary", color_mnist_like(1, examples).silos[0])
    seconds = medians({"vote": lambda: vote(mlp), "plain": lambda: plain(mlp)}, repeats=7)
    detail = f"{seconds['vote']:.3f} s / {seconds['plain']:.3f} s"
    ratio = seconds["vote"] / seconds["plain"]
    what = f"MLP, {examples:,} votes"
    return [at_most("per example", what, "a plain backward", ratio, 3.5, detail), _memory(examples), cnn]


def _images(count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The CNN of Rotated-CIFAR10, and random images with labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 16, 16, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    return build_model("cnn", (3, 16, 16), 10, seed=0), x, y


def _cnn_row(images: int) -> Row:
    """Every image a vote, against vmap: as torch has it, and with freed memory kept as the votes keep it."""
    model, x, y = _images(images)
    (alone,) = _in_own_process("vmap", images)
    cnn = voter(model, "multiclass", Silo("images", x, y))
    seconds = medians({"vmap": lambda: vmapped(model, x, y, 50), "vote": lambda: vote(cnn)}, repeats=2)
    detail = f"{alone:.2f} s / {seconds['vote']:.2f} s; vmap with memory kept: {seconds['vmap']:.2f} s"
    what = f"CNN, {images:,} votes"
    return at_least("per example", "vmap and log sums", what, alone / seconds["vote"], 8, detail)


def _in_own_process(what: str, examples: int) -> list[float]:
    """The numbers that `_measure` prints in a process whose memory nothing else has touched."""
    command = [sys.executable, "-m", "benchmarks.per_example", what, str(examples)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def _memory(examples: int) -> Row:
    """Peak memory of the votes beyond what the process had."""
    extra, budget = _in_own_process("memory", examples)
    detail = f"{extra / 2**20:.0f} MiB / {budget / 2**20:.0f} MiB"
    return at_most("per example", "peak extra memory", "parameters + activations", extra / budget, 3, detail)


def _measure(what: str, examples: int) -> None:
    """Print the seconds of vmap, or the growth of peak memory during votes and what it is held against."""
    torch.set_num_threads(2)
    if what == "vmap":
        model, x, y = _images(examples)
        print(medians({"vmap": lambda: vmapped(model, x, y, 50)}, repeats=2)["vmap"])
        return
    warm = voter(color_mnist_mlp(), "binary", color_mnist_like(1, 10).silos[0])
    vote(warm)
    computation = voter(color_mnist_mlp(), "binary", color_mnist_like(1, examples).silos[0])
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what the process holds now
    before = memory()
    vote(computation)
    after = memory("VmHWM")
    runner = computation.runner
    parameters = sum(p.numel() * p.element_size() for p in runner.parameters.values())
    print(after - before, parameters + examples * runner.example_bytes(computation.x))


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]))
