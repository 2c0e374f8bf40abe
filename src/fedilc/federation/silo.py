"""What a silo answers. It knows nothing of how bytes travel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedilc.aggregation import Accumulation, Mean
from fedilc.data import Silo
from fedilc.errors import ProtocolError
from fedilc.federation.messages import Reply, Request, domain_key
from fedilc.federation.task import Task
from fedilc.gradients import SiloComputation, Workbench
from fedilc.gradients.forward import KEPT_BYTES
from fedilc.numerics import wide_dtype

Metrics = Callable[[Tensor, Tensor], dict[str, float | None]]


class SiloWorker:
    """One participant: its data, a workbench to compute on, and how it measures its validation set."""

    def __init__(self, silo: Silo, bench: Workbench, task: Task, metrics: Metrics) -> None:
        self.silo = silo
        self.bench = bench
        self.task = task
        self.metrics = metrics
        votes = task.intra if not isinstance(task.intra, Mean) else None
        self.votes = votes if task.environment_size is not None else None
        size = task.environment_size if task.intra is not None else None
        self.computation = SiloComputation(bench, silo, size, self.votes is not None, task.seed)

    def answer(self, request: Request, keep_bytes: int = KEPT_BYTES) -> Reply:
        """The reply to any request; forward passes of up to `keep_bytes` stay in memory between phases."""
        self.bench.load(request.weights, request.version)
        reply = Reply(self.silo.name, request.phase, request.round)
        if request.phase == "statistics":
            variance = self.computation.statistics(request.round, keep_bytes)
            reply.tensors["variance"] = {"C": variance}
        elif request.phase == "gradients":
            self._gradients(request, reply)
        elif request.phase == "evaluate":
            self._evaluate(reply)
        else:
            raise ProtocolError(f"phase {request.phase!r} is unknown to silo {self.silo.name!r}")
        return reply

    def _gradients(self, request: Request, reply: Reply) -> None:
        vector, scale = None, None
        if request.variance is not None:
            vector, distance = self._vector(request)
            reply.numbers["distance"] = distance
            if self.task.algorithm.adds_up_in_silo:
                scale = (request.penalty or 0.0) * len(request.silos)
        sink = None
        if self.votes is not None:
            zero = self.votes.zero(self.bench.parameters)
            sink = Accumulation(self.votes, zero, f"silo {self.silo.name!r}")
        found = self.computation.gradients(request.round, vector, scale, sink)
        gradient = found.gradient
        if sink is not None:
            gradient = sink.aggregator.finalize(sink.state).value
        assert gradient is not None
        if found.penalty is not None and scale is not None:
            for name, product in found.penalty.items():
                gradient[name] = gradient[name] + scale * product
        elif found.penalty is not None:
            reply.tensors["penalty"] = found.penalty
        reply.tensors["gradient"] = gradient
        reply.numbers |= {"loss": found.loss, "examples": len(self.silo)}

    def _vector(self, request: Request) -> tuple[Tensor, float]:
        """v_e = 2/E (C_e - mean C), or 2 (C_e - mean C) for the sum, and ||C_e - mean C||^2."""
        assert request.variance is not None
        own = self.computation.variance(request.round)
        difference = own - request.variance.to(own)
        factor = 2.0 / len(request.silos) if self.task.reduction == "mean" else 2.0
        return factor * difference, float(difference.to(wide_dtype(own.device)).square().sum())

    def _evaluate(self, reply: Reply) -> None:
        if self.silo.x_val is not None and self.silo.y_val is not None:
            logits = self.bench.predict(self.bench.inputs(self.silo.x_val))
            y = self.bench.labels(self.silo.y_val)
            reply.numbers |= self.metrics(logits, y)
            names = self.silo.domains or []
            for domain in dict.fromkeys(names):
                rows = torch.tensor([name == domain for name in names], device=y.device)
                found = self.metrics(logits[rows], y[rows])
                reply.numbers |= {domain_key(domain, metric): value for metric, value in found.items()}
