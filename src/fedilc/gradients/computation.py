"""Compute what one silo answers in a round: its statistic s_e, its gradient, and J_e^T v_e.

`SiloComputation` computes for one silo. All silos of a process share one model, which `ModelRunner` runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from fedilc.data.inputs import Examples, Inputs, call, mapped, select, tensors_of
from fedilc.errors import ConfigError
from fedilc.gradients.environments import Chunk, Layout, later, lay_out, lay_out_mean
from fedilc.gradients.fast_linear import FastLinear, keep_freed_memory
from fedilc.gradients.forward import (
    CHUNK_BYTES,
    KEPT_BYTES,
    BackwardStarts,
    Pass,
    bytes_per_example,
    classifier_input,
    private_randomness,
    tapped,
)
from fedilc.gradients.losses import Loss
from fedilc.gradients.penalty_weight import add_penalty
from fedilc.gradients.per_example import Plan, plan_layers, stream_environments
from fedilc.gradients.perceptron import Perceptron
from fedilc.models import find_classifier
from fedilc.models.requirements import set_training
from fedilc.seeds import seed_for

if TYPE_CHECKING:
    from fedilc.aggregation import Accumulation, Aggregator
    from fedilc.penalties import Penalty


@dataclass
class Computed:
    """The result of a silo: its gradient, J_e^T v_e unless it was added to that, and the mean loss."""

    gradient: dict[str, Tensor]
    penalty_gradient: dict[str, Tensor] | None
    loss: float


@dataclass(eq=False)
class SiloComputation:
    """One silo's examples, and what it remembers between the steps of a round.

    Args:
        runner: runs the model, which all silos of a process share.
        name: name of the silo, from which its random choices derive.
        x: inputs, on the device and in the dtype of the model.
        y: labels, as the loss needs them.
        environment_size: examples per environment; None is all of them.
        intra: aggregation of the gradients of environments, each of which is a vote; None averages them.
        seed: seed of the run.
        penalty: penalty of the run, if it has one.
        step: number of the local step; step 1 draws the same random numbers as a run without local steps.
        loss: loss of this silo, if its classes have weights; None is the loss of the runner.
    """

    runner: ModelRunner
    name: str
    x: Examples
    y: Tensor
    environment_size: int | None = None
    intra: Aggregator | None = None
    seed: int = 0
    penalty: Penalty | None = None
    step: int = 1
    loss: Loss | None = None

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the sums and forward passes of the last round."""
        self._round: int | None = None
        self._total: Any = None
        self._kept: dict[int, Pass] = {}

    def statistics(self, round_: int, keep_bytes: int) -> Tensor:
        """Return s_e at the current weights; keep forward passes of up to `keep_bytes` for the gradients."""
        assert self.penalty is not None, "the algorithm has no penalty"
        self.forget()
        layout = self.layout(round_)
        kept = keep_bytes // self.runner.example_bytes(self.x)
        total: Any = None
        for number, cut in enumerate(layout.chunks):
            keep = cut.stop <= kept
            graph = keep or self.penalty.needs_graph
            with torch.set_grad_enabled(graph), self._randomness(round_, number):
                chunk = self._pass(layout, cut, taps=keep)
                sums = self.penalty.sums(chunk)
            total = sums if total is None else total + sums
            if keep:
                self._kept[number] = chunk
        self._round, self._total = round_, total
        return self.penalty.value(total)

    def matched(self, round_: int) -> Tensor:
        """Return s_e of this round, computed again if this silo was not asked for it in the step before."""
        self.prepare(round_)
        assert self.penalty is not None
        return self.penalty.value(self._total)

    def prepare(self, round_: int) -> None:
        """Make sure that the sums of s_e, which J_e^T v_e needs, are those of this round."""
        if self._total is None or self._round != round_:
            self.statistics(round_, KEPT_BYTES)

    def gradients(self, round_: int, vector: Tensor | None = None, weight: float | None = None) -> Computed:
        """Return the gradient and, given v_e, J_e^T v_e.

        With `weight` (lambda E) the product is added to the gradient, in one backward pass unless
        environments vote; without it, the product is returned beside the gradient.
        """
        by_hand = self.by_hand(len(self.x)) if vector is None else None
        if by_hand is not None:
            with torch.no_grad():
                logits, found = by_hand(self.x, self.y)
                loss = float(self.example_losses(logits, self.y).double().sum()) / len(self.x)
            self.forget()
            return Computed(dict(zip(self.runner.parameters, found, strict=True)), None, loss)
        if vector is not None:
            self.prepare(round_)
        layout, parameters = self.layout(round_), self.runner.parameters
        votes = None if self.intra is None else self.intra.stream(parameters, f"silo {self.name!r}")
        gradient = self._zeros() if votes is None else {}
        penalty_gradient = None
        if vector is not None and (votes is not None or weight is None):
            penalty_gradient = self._zeros()
        elif vector is not None and weight is not None:
            # J^T (lambda E v) = lambda E J^T v: scaled here, the product and the gradient share a backward
            # pass.
            vector = weight * vector
        partial: dict[str, Tensor] = {}
        loss = 0.0
        for cut, chunk in self._passes(layout, round_):
            losses = chunk.losses()
            loss += float(losses.detach().double().sum())
            product: BackwardStarts = []
            if vector is not None:
                assert self.penalty is not None, "the algorithm has no penalty"
                product = self.penalty.carry_back(chunk, self._total, vector)
            if votes is not None:
                self._vote(votes, cut, chunk, losses, partial, keep_graph=bool(product))
            else:
                mean = layout.mean(cut, losses)
                starts = [(mean, torch.ones_like(mean))]
                if penalty_gradient is None:
                    starts, product = starts + product, []
                self._add_gradient(gradient, starts, keep_graph=bool(product))
            if product and penalty_gradient is not None:
                self._add_gradient(penalty_gradient, product, keep_graph=False)
        self.forget()
        if votes is not None:
            gradient = votes.aggregator.finalize(votes.state).value
        if penalty_gradient is not None and weight is not None:
            return Computed(add_penalty(gradient, penalty_gradient, weight), None, loss / len(self.x))
        return Computed(gradient, penalty_gradient, loss / len(self.x))

    def by_hand(self, examples: int) -> Callable[[Any, Tensor], tuple[Tensor, list[Tensor]]] | None:
        """Return a function that computes logits and gradients of this many examples without autograd.

        It has autograd's bits. None stands for all that `perceptron` leaves out, and for more examples than
        one chunk may hold.
        """
        perceptron = self.perceptron(examples)
        if perceptron is None or examples > self.runner.most_examples(self.x):
            return None
        self.runner.keep_memory()
        return partial(perceptron.gradients, loss=self.loss or self.runner.loss)

    def perceptron(self, examples: int) -> Perceptron | None:
        """Return the model if its mean gradient over so many examples can be computed without autograd.

        None stands for votes, networks other than perceptrons, and losses other than the built-in ones.
        """
        found, loss = self.runner.perceptron, self.loss or self.runner.loss
        if found is None or self.intra is not None or self.environment_size is not None:
            return None
        return found if found.takes(self.x, examples, loss) else None

    def example_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example."""
        return (self.loss or self.runner.loss).per_example(logits, y)

    def layout(self, round_: int) -> Layout:
        """Return how the examples are cut into environments and chunks in a round."""
        most = self.runner.most_examples(self.x)
        votes = lay_out(len(self.x), self.environment_size, most, self.seed, round_, self.name, self.step)
        return lay_out_mean(votes, most) if self.intra is None else votes

    def part(self, rows: Tensor | None, step: int) -> SiloComputation:
        """Return the computation over some of the examples, or all, in a local step."""
        x, y = (self.x, self.y) if rows is None else (select(self.x, rows), self.y[rows])
        return replace(self, x=x, y=y, step=step)

    @property
    def kept_bytes(self) -> int:
        """Return an estimate of the memory of the forward passes kept for the next step, in bytes."""
        return sum(len(chunk.x) for chunk in self._kept.values()) * self.runner.example_bytes(self.x)

    def _passes(self, layout: Layout, round_: int) -> Iterator[tuple[Chunk, Pass]]:
        """Yield the forward pass of each chunk: the kept one if there is one, or else a new one."""
        for number, cut in enumerate(layout.chunks):
            with self._randomness(round_, number):
                chunk = self._kept.pop(number, None)
                yield cut, self._pass(layout, cut, taps=True) if chunk is None else chunk

    def _pass(self, layout: Layout, cut: Chunk, taps: bool) -> Pass:
        x, y = layout.rows(cut, self.x), cast(Tensor, layout.rows(cut, self.y))
        tapped = self.runner.plan(self.x, self.y).tapped if taps and self.intra is not None else {}
        return self.runner.forward(x, y, tapped, self.loss)

    def _randomness(self, round_: int, chunk: int) -> AbstractContextManager[None]:
        """Return a random stream per chunk, so that keeping some chunks changes no bit of the others."""
        number = [chunk] if chunk else []
        seed = seed_for(self.seed, round_, self.name, "forward", *number, *later(self.step))
        return private_randomness(self.runner.device, seed)

    def _add_gradient(self, total: dict[str, Tensor], starts: BackwardStarts, keep_graph: bool) -> None:
        """Add the gradient of a backward pass that begins at `starts` to `total`."""
        # One number in place of gradients of outputs, for which torch would import sympy, half a second.
        number = torch.stack([(output * start).sum() for output, start in starts]).sum()
        weights = list(self.runner.parameters.values())
        found = torch.autograd.grad(number, weights, retain_graph=keep_graph, materialize_grads=True)
        for name, value in zip(total, found, strict=True):
            total[name] += value

    def _zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(parameter) for name, parameter in self.runner.parameters.items()}

    def _vote(
        self,
        votes: Accumulation,
        cut: Chunk,
        chunk: Pass,
        losses: Tensor,
        partial: dict[str, Tensor],
        keep_graph: bool,
    ) -> None:
        """Add the mean gradients of the chunk's environments to the votes.

        `partial` holds the gradient so far of an environment that spans several chunks.
        """
        if cut.stop - cut.start >= cut.size and cut.closes and not partial:
            plan = self.runner.plan(self.x, self.y)
            stream_environments(self.runner.model, chunk, cut.size, plan, votes, keep_graph)
            return
        if not partial:
            partial.update(self._zeros())
        self._add_gradient(partial, [(losses, torch.full_like(losses, 1 / cut.size))], keep_graph)
        if cut.closes:
            for name, value in partial.items():
                votes.stack(name, value.unsqueeze(0))
            votes.counted(1)
            partial.clear()


class ModelRunner:
    """The one model of a process, which all its silos use; weights are copied into it in place."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        classifier: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.model = set_training(model, True)
        self.format = torch.preserve_format
        if any(isinstance(module, nn.Conv2d) for module in model.modules()):
            self.format = torch.channels_last
            convert_conv2d_weight_memory_format(self.model, self.format)
        self.loss = loss
        self.perceptron = Perceptron.of(model)
        self.chunk_bytes = chunk_bytes
        self.use_classifier(classifier)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        first = next(iter(self.parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self._version: int | None = None
        self._example_bytes: int | None = None
        self._clones = False
        self._plan: Plan | None = None
        self._keeps_memory = False

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the server's weights into the model, unless it already has them."""
        if version != self._version:
            for name, parameter in self.parameters.items():
                if weights[name].data_ptr() != parameter.data_ptr():  # in one process, w is this very tensor
                    parameter.copy_(weights[name])
            self._version = version

    def forward(self, x: Inputs, y: Tensor, taps: Mapping[str, nn.Module], loss: Loss | None = None) -> Pass:
        """Return the forward pass of a chunk with features and the given taps; `loss` may be a silo's own."""
        self.keep_memory()
        with classifier_input(self.classifier) as seen, tapped(dict(taps)) as recorded, FastLinear():
            logits = self.loss.logits(call(self.model, x.clone() if self._clones else x))
        parameters = list(self.parameters.values())
        return Pass(
            x, y, logits, seen, recorded, loss or self.loss, parameters, self.classifier, self.classifier_name
        )

    def keep_memory(self) -> None:
        """Keep freed memory in the process while the runner exists."""
        if not self._keeps_memory:
            keep_freed_memory(self)
            self._keeps_memory = True

    def predict(self, x: Examples) -> Tensor:
        """Return the logits of any number of examples, in evaluation mode and without a graph."""
        rows = 4 * self.most_examples(x)
        x = x.clone() if self._clones else x
        set_training(self.model, False)
        try:
            with torch.inference_mode(), FastLinear():
                return torch.cat([self.loss.logits(call(self.model, part)) for part in x.split(rows)])
        finally:
            set_training(self.model, True)

    @overload
    def inputs(self, x: Inputs) -> Inputs: ...

    @overload
    def inputs(self, x: Examples) -> Examples: ...

    def inputs(self, x: Examples) -> Examples:
        """Return inputs on the model's device and in its memory layout; floating-point ones in its dtype."""
        return mapped(self._moved, x)

    def _moved(self, x: Tensor) -> Tensor:
        layout = self.format if x.dim() == 4 else torch.preserve_format
        return x.to(self.device, self.dtype if x.is_floating_point() else None, memory_format=layout)

    def labels(self, y: Tensor) -> Tensor:
        """Return labels as the loss needs them."""
        return self.loss.labels(y, self.dtype).to(self.device)

    def plan(self, x: Examples, y: Tensor) -> Plan:
        """Return how the gradients of single environments are computed; this is decided once."""
        if self._plan is None:
            self._plan = plan_layers(self.model, self.loss, x[:3], y[:3])
        return self._plan

    def most_examples(self, x: Examples) -> int:
        """Return how many examples a chunk may hold."""
        return max(1, self.chunk_bytes // self.example_bytes(x))

    def example_bytes(self, x: Examples) -> int:
        """Return an estimate of the memory of one example's forward pass in bytes, measured once."""
        if self._example_bytes is None:
            self._example_bytes = bytes_per_example(self.model, x[:2])
            self._clones = self._writes_to_inputs(x[:1])
        return self._example_bytes

    def _writes_to_inputs(self, x: Inputs) -> bool:
        """Return whether the model changes its input in place, so that it must be given copies."""
        probe = x.clone()
        with torch.no_grad(), private_randomness(self.device, 0):
            call(self.model, probe)
        return not all(map(torch.equal, tensors_of(probe), tensors_of(x)))

    def use_classifier(self, name: str | None) -> None:
        """Use the layer of this name as the one that gives the logits; None is the last linear layer."""
        self.classifier_name, self.classifier = name, None
        if name is not None or any(isinstance(module, nn.Linear) for module in self.model.modules()):
            self.classifier_name, self.classifier = find_classifier(self.model, name)


def find_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one, a different one for each local rank."""
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda") and torch.cuda.is_available():
        place = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        return torch.device("cuda", int(place) % torch.cuda.device_count())
    if name.startswith("cuda:") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"device {name!r} is one GPU for all ranks of a machine; give 'cuda' for one per rank"
        )
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device
