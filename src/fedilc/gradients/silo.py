"""What one silo computes in a round: its C_e, its gradient, and the Fishr product J_e^T v_e."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from fedilc.data import Silo
from fedilc.gradients.environments import Chunk, Layout, lay_out, lay_out_mean
from fedilc.gradients.forward import (
    CHUNK_BYTES,
    KEPT_BYTES,
    Pass,
    bytes_per_example,
    classifier_input,
    only_features,
    private_randomness,
    tapped,
)
from fedilc.gradients.linear import FastLinear
from fedilc.gradients.losses import Loss
from fedilc.gradients.memory import keep_freed_memory
from fedilc.gradients.per_example import Plan, Sink, plan_layers, stream_environments
from fedilc.gradients.validation import set_training
from fedilc.gradients.variance import (
    Covariance,
    Moments,
    classifier_moments,
    vector_jacobian_seeds,
)
from fedilc.models import find_classifier
from fedilc.seeds import seed_for

Seeds = list[tuple[Tensor, Tensor]]


class Workbench:
    """One resident model that many silos compute with, its parameters restored in place."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        classifier: str | None = None,
        covariance: Covariance = "diagonal",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.model = set_training(model, True)
        self.format = torch.preserve_format
        if any(isinstance(module, nn.Conv2d) for module in model.modules()):
            self.format = torch.channels_last
            convert_conv2d_weight_memory_format(self.model, self.format)
        self.loss = loss
        self.covariance = covariance
        self.chunk_bytes = chunk_bytes
        self.classifier_name, self.classifier = classifier, None
        if classifier is not None or any(isinstance(module, nn.Linear) for module in model.modules()):
            self.classifier_name, self.classifier = find_classifier(model, classifier)
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
        """Take the server's weights, unless they are already here."""
        if version != self._version:
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])
            self._version = version

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs on the model's device, in its dtype if they are floating-point, laid out to suit it."""
        layout = self.format if x.dim() == 4 else torch.preserve_format
        return x.to(self.device, self.dtype if x.is_floating_point() else None, memory_format=layout)

    def labels(self, y: Tensor) -> Tensor:
        """Labels as the loss needs them."""
        return self.loss.labels(y, self.dtype).to(self.device)

    def example_bytes(self, x: Tensor) -> int:
        """About how much memory the forward pass of one example takes, measured once."""
        if self._example_bytes is None:
            self._example_bytes = bytes_per_example(self.model, x)
            self._clones = self._writes_to_inputs(x)
        return self._example_bytes

    def _writes_to_inputs(self, x: Tensor) -> bool:
        """Whether the model changes its input, so that it must be given copies."""
        probe = x[:1].clone()
        with torch.no_grad(), private_randomness(self.device, 0):
            self.model(probe)
        return not torch.equal(probe, x[:1])

    def most_examples(self, x: Tensor) -> int:
        """How many examples a chunk may hold."""
        return max(1, self.chunk_bytes // self.example_bytes(x))

    def plan(self, x: Tensor, y: Tensor) -> Plan:
        """How the gradients of single environments are found, decided once."""
        if self._plan is None:
            self._plan = plan_layers(self.model, self.loss, x, y)
        return self._plan

    def forward(self, x: Tensor, y: Tensor, taps: Mapping[str, nn.Module]) -> Pass:
        """One chunk's forward with features, and taps on the layers asked for."""
        if not self._keeps_memory:
            keep_freed_memory(self)
            self._keeps_memory = True
        with classifier_input(self.classifier) as seen, tapped(dict(taps)) as recorded, FastLinear():
            logits = self.loss.logits(self.model(x.clone() if self._clones else x))
        return Pass(x, y, logits, seen, recorded)

    def moments(self, chunk: Pass) -> Moments:
        """The chunk's part of C_e."""
        return classifier_moments(*self._classifier_pass(chunk), self.covariance)

    def product(self, chunk: Pass, whole: Moments, vector: Tensor) -> Seeds:
        """Where a backward pass must begin, and with what, to give the chunk's part of J_e^T v_e."""
        features, delta, bias = self._classifier_pass(chunk)
        seeds = vector_jacobian_seeds(features, delta, bias, whole, vector)
        pairs = zip((features, delta), seeds, strict=True)
        return [(place, seed) for place, seed in pairs if place.requires_grad]

    def _classifier_pass(self, chunk: Pass) -> tuple[Tensor, Tensor, bool]:
        """z, delta, and whether there is a bias."""
        features = only_features(chunk.features, self.classifier_name)
        delta = self.loss.logit_gradient(chunk.logits, chunk.y)
        return features, delta, self.classifier is not None and self.classifier.bias is not None

    def predict(self, x: Tensor) -> Tensor:
        """Logits of any number of examples, without graph, in evaluation mode."""
        rows = 4 * self.most_examples(x)
        x = x.clone() if self._clones else x
        set_training(self.model, False)
        try:
            with torch.inference_mode(), FastLinear():
                return torch.cat([self.loss.logits(self.model(part)) for part in x.split(rows)])
        finally:
            set_training(self.model, True)


@dataclass
class Computed:
    """A silo's answer before aggregation inside it: gradients by parameter, and the mean loss."""

    gradient: dict[str, Tensor] | None
    penalty: dict[str, Tensor] | None
    loss: float


class SiloComputation:
    """One silo's examples on a workbench, and what it remembers between the phases of a round."""

    def __init__(
        self, bench: Workbench, silo: Silo, environment_size: int | None, streams: bool, seed: int
    ) -> None:
        self.bench = bench
        self.name = silo.name
        self.x, self.y = bench.inputs(silo.x), bench.labels(silo.y)
        self.environment_size = environment_size
        self.streams = streams
        self.seed = seed
        self.forget()

    def forget(self) -> None:
        """Drop what the last round left."""
        self._round: int | None = None
        self._moments: Moments | None = None
        self._kept: dict[int, Pass] = {}

    @property
    def kept_bytes(self) -> int:
        """About how much memory the forward passes kept for the next phase take."""
        return sum(len(chunk.x) for chunk in self._kept.values()) * self.bench.example_bytes(self.x)

    def statistics(self, round_: int, keep_bytes: int) -> Tensor:
        """C_e at the current weights; forward passes of up to `keep_bytes` stay for the gradients."""
        self.forget()
        layout = self._layout(round_)
        kept = keep_bytes // self.bench.example_bytes(self.x)
        total: Moments | None = None
        for number, cut in enumerate(layout.chunks):
            keep = cut.stop <= kept
            with torch.set_grad_enabled(keep), self._randomness(round_, number):
                chunk = self._pass(layout, cut, taps=keep)
                moments = self.bench.moments(chunk)
            total = moments if total is None else total + moments
            if keep:
                self._kept[number] = chunk
        assert total is not None
        self._round, self._moments = round_, total
        return total.variance().to(self.bench.dtype)

    def variance(self, round_: int) -> Tensor:
        """C_e of this round, computed again if this silo was not asked for it in the phase before."""
        if self._moments is None or self._round != round_:
            return self.statistics(round_, KEPT_BYTES)
        return self._moments.variance().to(self.bench.dtype)

    def gradients(
        self, round_: int, vector: Tensor | None, scale: float | None, sink: Sink | None
    ) -> Computed:
        """The gradient (into `sink` where environments vote) and, given v_e, J_e^T v_e.

        With `scale` the product is multiplied by it and added to the gradient, in one backward
        pass where that is possible; without, it is returned beside the gradient.
        """
        layout, parameters = self._layout(round_), self.bench.parameters
        gradient = None if sink else {n: torch.zeros_like(p) for n, p in parameters.items()}
        apart = sink is not None or scale is None
        penalty = None
        if vector is not None and apart:
            penalty = {n: torch.zeros_like(p) for n, p in parameters.items()}
        partial: dict[str, Tensor] = {}
        loss = 0.0
        for cut, chunk in self._passes(layout, round_):
            losses = self.bench.loss.per_example(chunk.logits, chunk.y)
            loss += float(losses.detach().double().sum())
            product: Seeds = []
            if vector is not None:
                assert self._moments is not None, "variance() comes before a product with it"
                product = self.bench.product(chunk, self._moments, vector)
            if gradient is not None:
                mean = layout.mean(cut, losses)
                begin = [(mean, torch.ones_like(mean))]
                if product and scale is not None:
                    begin += [(place, seed.mul_(scale)) for place, seed in product]
                    product = []
                self._add_gradient(gradient, begin, keep_graph=bool(product))
            elif sink is not None:
                self._vote(sink, cut, chunk, losses, partial, keep_graph=bool(product))
            if product and penalty is not None:
                self._add_gradient(penalty, product, keep_graph=False)
        self.forget()
        return Computed(gradient, penalty, loss / len(self.x))

    def _layout(self, round_: int) -> Layout:
        most = self.bench.most_examples(self.x)
        lay = lay_out if self.streams else lay_out_mean
        return lay(len(self.x), self.environment_size, most, self.seed, round_, self.name)

    def _taps(self) -> dict[str, nn.Module]:
        return self.bench.plan(self.x, self.y).tapped if self.streams else {}

    def _passes(self, layout: Layout, round_: int) -> Iterator[tuple[Chunk, Pass]]:
        """The chunks' forward passes: those that were kept, each handed out once, and the others anew."""
        for number, cut in enumerate(layout.chunks):
            with self._randomness(round_, number):
                chunk = self._kept.pop(number, None)
                yield cut, self._pass(layout, cut, taps=True) if chunk is None else chunk

    def _pass(self, layout: Layout, cut: Chunk, taps: bool) -> Pass:
        x, y = layout.rows(cut, self.x), layout.rows(cut, self.y)
        return self.bench.forward(x, y, self._taps() if taps else {})

    def _randomness(self, round_: int, chunk: int) -> AbstractContextManager[None]:
        """A stream of its own for each chunk, so that keeping some of them changes no bit of the others."""
        number = [chunk] if chunk else []
        seed = seed_for(self.seed, round_, self.name, "forward", *number)
        return private_randomness(self.bench.device, seed)

    def _add_gradient(self, total: dict[str, Tensor], begin: Seeds, keep_graph: bool) -> None:
        """Add to `total` the gradient that a backward pass from these places brings."""
        places, seeds = zip(*begin, strict=True)
        found = torch.autograd.grad(
            places,
            list(self.bench.parameters.values()),
            seeds,
            retain_graph=keep_graph,
            materialize_grads=True,
        )
        for name, value in zip(total, found, strict=True):
            total[name] += value

    def _vote(
        self,
        sink: Sink,
        cut: Chunk,
        chunk: Pass,
        losses: Tensor,
        partial: dict[str, Tensor],
        keep_graph: bool,
    ) -> None:
        """Hand the mean gradients of the chunk's environments to the sink."""
        if cut.stop - cut.start >= cut.size and cut.closes and not partial:
            plan = self.bench.plan(self.x, self.y)
            stream_environments(self.bench.model, self.bench.loss, chunk, cut.size, plan, sink, keep_graph)
            return
        if not partial:
            partial.update({n: torch.zeros_like(p) for n, p in self.bench.parameters.items()})
        self._add_gradient(partial, [(losses, torch.full_like(losses, 1 / cut.size))], keep_graph)
        if cut.closes:
            for name, value in partial.items():
                sink.stack(name, value.unsqueeze(0))
            sink.counted(1)
            partial.clear()
