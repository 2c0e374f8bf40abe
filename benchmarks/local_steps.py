"""Rounds and megabytes that local steps save on Color-MNIST: `fishr-inter-geo` with K = 1, 5, 20 steps.

    python -m benchmarks.local_steps OUT [--subset 0.25]

trains `fishr-inter-geo` for 100 rounds, one seed, and then the same method with K local steps until it
reaches the same out-of-distribution loss at the round that the silos' validation loss chooses, so that a loss
which merely passes by does not count. It prints a Markdown table and draws OUT/local-steps.png; runs stay in
OUT and are continued. Needs MNIST in the folder that FEDILC_DATA names.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from fedilc import Algorithm, LocalSteps, train
from fedilc.algorithms import find_algorithm
from fedilc.config import Experiment, Options, read_experiment
from fedilc.data.silo_store import SiloStore
from fedilc.federation import Program, Record
from fedilc.report.plots import COLOURS
from fedilc.storage.run_folder import RunFolder
from fedilc.training.callbacks import Callback, Run
from fedilc.training.loop import Specification

BASE, ROUNDS = "fishr-inter-geo", 100
STEPS = {1: 120, 5: 80, 20: 40}
RATES = {1: 3e-4, 5: 1e-4, 20: 3e-5}


def chosen(history: list[Record]) -> float:
    """Return the loss at the test site of the round of lowest validation loss so far."""
    return float(min(history, key=lambda record: record["validation_loss"])["test_loss"])


class StopAt(Callback):
    """Stop once the loss at the test site, of the round that validation chooses, is as low as a target."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_round(self, run: Run, _record: Record) -> None:
        if chosen(run.history) <= self.target:
            run.stop(f"the loss reached {self.target:.4f}")


@dataclass
class Line:
    """One run: its losses by round, and what a round carries."""

    label: str
    history: list[Record]
    megabytes: float
    target: float

    @property
    def losses(self) -> list[float]:
        """The losses at the test site."""
        return [record["test_loss"] for record in self.history]

    def rounds(self) -> int | None:
        """Return the first round at the target, or None."""
        counts = range(1, len(self.history) + 1)
        return next((n for n in counts if chosen(self.history[:n]) <= self.target), None)


def local_algorithm(steps: int) -> Algorithm:
    """Return the paper's method with local steps of Adam, whose updates the server takes as they are."""
    update = LocalSteps(steps=steps, optimizer="adam", learning_rate=RATES[steps])
    return Algorithm(update=update, inter="geometric", penalty="fishr", optimizer="sgd")


def megabytes(program: Program, silos: int) -> float:
    """Return what a round carries: w and what steps send, down; what silos answer, up."""

    def size(like: Any) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in like.values())

    total = size(program.weights)
    for step in program.round(1.0):
        total += sum(size(like) for like in step.sends.values())
        total += sum(size(answer.like) for answer in step.answers.values())
    return silos * total / 1e6


def run(
    settings: Experiment, store: SiloStore, algorithm: Algorithm, out: Path, **more: Any
) -> tuple[list[Record], float]:
    """Train or continue; return the history, and the megabytes of a round."""
    options = settings.options() | more.pop("options")
    model = settings.model.build(store, settings.seed)
    resume = RunFolder(out).settings_file.exists()
    result = train(store, model, algorithm, out=out, resume=resume, **options, **more)
    spec = Specification.of(store.outline(), model, algorithm, Options(**options))
    return result.history, megabytes(spec.program, len(store.silos))


def main() -> None:
    """Train, print the table, draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_steps", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--subset", type=float, default=1.0, help="the part of the images to use")
    arguments = parser.parse_args()
    settings, home = read_experiment("color-mnist", [f"data.subset={arguments.subset}"])
    store = settings.data.store(settings.seed, home)
    entry = find_algorithm(BASE)[1]
    history, size = run(settings, store, entry, arguments.out / BASE, options={"rounds": ROUNDS})
    target = chosen(history)
    lines = [Line(f"{BASE}, no local steps", history, size, target)]
    for steps, rounds in STEPS.items():
        own = {"rounds": rounds, "learning_rate": 1.0, "weight_decay": 0.0}
        found = run(
            settings,
            store,
            local_algorithm(steps),
            arguments.out / f"steps-{steps}",
            options=own,
            callbacks=[StopAt(target)],
        )
        lines.append(Line(f"K = {steps}, rate {RATES[steps]:g}", *found, target))
    print(table(lines))
    draw(lines, arguments.out / "local-steps.png")


def table(lines: list[Line]) -> str:
    """Return rounds and megabytes to the target as Markdown."""
    rows = [
        "| | rounds to the loss | MB per round | MB in all | validation accuracy then |",
        "|---|---:|---:|---:|---:|",
    ]
    for line in lines:
        rounds = line.rounds()
        reached = f"{rounds}" if rounds else f"not in {len(line.losses)}"
        total = f"{rounds * line.megabytes:,.0f}" if rounds else "-"
        accuracy = line.history[(rounds or len(line.history)) - 1]["validation_accuracy"]
        rows.append(f"| {line.label} | {reached} | {line.megabytes:.1f} | {total} | {accuracy:.3f} |")
    return "\n".join(rows)


def draw(lines: list[Line], path: Path) -> None:
    """Draw the loss at the test site by round and by megabytes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for line, colour in zip(lines, COLOURS, strict=False):
        rounds = range(1, len(line.losses) + 1)
        left.plot(rounds, line.losses, label=line.label, color=colour)
        right.plot([number * line.megabytes for number in rounds], line.losses, color=colour)
    for axes, name in ((left, "round"), (right, "megabytes sent")):
        axes.axhline(lines[0].target, color="0.5", linewidth=0.8, linestyle="--")
        axes.set(xlabel=name, xscale="log")
    left.set(ylabel="loss at the test site")
    left.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
