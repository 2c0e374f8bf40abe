"""Compute a silo's reply to a request, the same in every runtime.

`SiloClient.answer` loads w and computes what the step asks for: in FedAvg, `_update` takes local steps and
replies w - w_e; with gradients it replies the gradient at w; `_evaluate` replies the validation metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedilc.aggregation import Mean
from fedilc.aggregation.base import wide_dtype
from fedilc.data import Silo
from fedilc.data.balance import balanced
from fedilc.data.inputs import Streamed, require_one_input
from fedilc.errors import ProtocolError
from fedilc.federation.control_variates import SiloState
from fedilc.federation.program import (
    CONTROL,
    EVALUATE,
    HESSIAN,
    MATCHED,
    PENALTY,
    PENALTY_WEIGHT,
    STATE_ROUND,
    STATE_SINCE,
    STATISTICS,
    UPDATE,
    Program,
)
from fedilc.federation.protocol import DOMAINS, Reply, Request
from fedilc.federation.rounding import round_reply
from fedilc.gradients import ModelRunner, SiloComputation
from fedilc.gradients.forward import KEPT_BYTES
from fedilc.gradients.local_steps import take_steps
from fedilc.gradients.newton import gradient_and_hessian

Metrics = Callable[[Tensor, Tensor], dict[str, float | None]]


class SiloClient:
    """One silo: its examples, the model that computes with them, and the metrics of its validation set."""

    def __init__(
        self,
        silo: Silo,
        runner: ModelRunner,
        program: Program,
        metrics: Metrics,
        state: SiloState | None = None,
    ) -> None:
        self.silo = silo
        self.runner = runner
        self.program = program
        self.metrics = metrics
        self.state = state or SiloState(silo.name)
        options = program.options
        size = options.environment_size if program.intra is not None else None
        intra = None if size is None or isinstance(program.intra, Mean) else program.intra
        x, y = runner.inputs(silo.x), runner.labels(silo.y)
        x, y, loss = balanced(x, y, runner.loss, options.balance, options.seed, silo.name)
        self.computation = SiloComputation(
            runner, silo.name, x, y, size, intra, options.seed, program.penalty, loss=loss
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the last request, by name."""
        return {name: parameter.detach() for name, parameter in self.runner.parameters.items()}

    def answer(self, request: Request, keep_bytes: int = KEPT_BYTES) -> Reply:
        """Return the reply to a request: load w, then compute what the step asks for.

        Forward passes of up to `keep_bytes` are kept for the next step of the round.
        """
        self.runner.load(request.weights, request.version)
        reply = Reply(self.silo.name, request.step, request.round)
        if request.step not in self.program.steps:
            raise ProtocolError(f"step {request.step!r} is unknown to silo {self.silo.name!r}")
        if request.step == STATISTICS:
            assert self.program.penalty is not None
            name = self.program.penalty.statistic
            # Local steps of one silo change the weights in the graphs that others kept, since all share a
            # model. A kept pass holds its inputs, and of streamed examples only one chunk may be in memory.
            keeps = self.program.algorithm.local is None and not self.silo.streamed
            kept = keep_bytes if keeps else 0
            reply.tensors[name] = {name: self.computation.statistics(request.round, kept)}
        elif request.step in (UPDATE, MATCHED):
            self._update(request, reply)
        elif request.step == EVALUATE:
            reply.metrics = self._evaluate()
        if reply.tensors and self.program.options.sum_unit is not None:
            round_reply(reply, self.program)
        return reply

    def _update(self, request: Request, reply: Reply) -> None:
        """Put the silo's update of w into the reply: its gradient, or w - w_e after local steps.

        In `matched-update`, v_e is computed first, and J_e^T v_e goes into the update or beside it.
        """
        vector, weight = None, None
        if request.step == MATCHED:
            vector, reply.numbers["distance"] = self._vector(request)
            if self.program.algorithm.adds_up_in_silo:
                weight = request.numbers[PENALTY_WEIGHT] * len(request.silos)
        if self.program.algorithm.is_newton:
            reply.numbers["loss"] = self._gradient_and_hessian(reply)
        elif self.program.algorithm.local is not None:
            reply.numbers["loss"] = self._step(request, reply, vector, weight)
        else:
            found = self.computation.gradients(request.round, vector, weight)
            if found.penalty_gradient is not None:
                reply.tensors[PENALTY] = found.penalty_gradient
            reply.tensors[self.program.update] = found.gradient
            reply.numbers["loss"] = found.loss
        reply.numbers["examples"] = len(self.silo)

    def _gradient_and_hessian(self, reply: Reply) -> float:
        """Put the mean gradient and the mean Hessian at w into the reply, and return the mean loss."""
        (weight, at), (bias, intercept) = self.weights.items()
        silo, w = self.computation, torch.cat([at.flatten(), intercept])
        x, criterion = silo.x, silo.loss or self.runner.loss
        size = self.runner.most_examples(x) if isinstance(x, Streamed) else len(x)
        found: Any = None
        for part, y in zip(x.split(size), silo.y.split(size), strict=True):
            means = gradient_and_hessian(require_one_input(part, "Newton's method"), y, w, criterion)
            shares = [len(y) / len(x) * mean for mean in means]
            found = shares if found is None else [a + b for a, b in zip(found, shares, strict=True)]
        gradient, hessian, loss = found
        reply.tensors[self.program.update] = {weight: gradient[:-1].view_as(at), bias: gradient[-1:]}
        reply.tensors[HESSIAN] = {HESSIAN: hessian}
        return float(loss)

    def _step(self, request: Request, reply: Reply, vector: Tensor | None, weight: float | None) -> float:
        """Take local steps, and put the update and the change of the control variate into the reply.

        SCAFFOLD (Karimireddy et al. 2020): gradients are corrected by c - c_e, and c_e becomes the mean of
        the uncorrected ones, which is its option II for plain SGD.
        """
        local = self.program.algorithm.local
        assert local is not None
        correction, own = None, dict[str, Tensor]()
        if local.control_variates:
            used, own = self.state.before(request.round, int(request.numbers[STATE_SINCE]))
            own = own or {name: torch.zeros_like(p) for name, p in self.runner.parameters.items()}
            reply.numbers[STATE_ROUND] = used
            common: Mapping[str, Tensor] = request.tensors[CONTROL]
            correction = {name: common[name].to(mine) - mine for name, mine in own.items()}
        found = take_steps(self.computation, local, request.round, vector, weight, correction)
        reply.tensors[self.program.update] = found.update
        if local.control_variates:
            reply.tensors[CONTROL] = {name: found.mean_gradient[name] - own[name] for name in own}
            self.state.keep(request.round, found.mean_gradient)
        return found.loss

    def _vector(self, request: Request) -> tuple[Tensor, float]:
        """Return v_e = 2/E (s_e - mean s), or 2 (s_e - mean s) for the sum, and ||s_e - mean s||^2."""
        assert self.program.penalty is not None
        own = self.computation.matched(request.round)
        difference = own
        if self.program.penalty.centred:
            name = self.program.penalty.statistic
            difference = own - request.tensors[name][name].to(own)
        factor = 2.0 / len(request.silos) if self.program.penalty.reduction == "mean" else 2.0
        return factor * difference, float(difference.to(wide_dtype(own.device)).square().sum())

    def _evaluate(self) -> dict[str, Any]:
        """Return the metrics of the validation set, and of each of its sub-domains."""
        if self.silo.x_val is None or self.silo.y_val is None:
            return {}
        logits = self.runner.predict(self.runner.inputs(self.silo.x_val))
        y = self.runner.labels(self.silo.y_val)
        found: dict[str, Any] = dict(self.metrics(logits, y))
        names = self.silo.domains or []
        domains = {}
        for domain in dict.fromkeys(names):
            rows = torch.tensor([name == domain for name in names], device=y.device)
            domains[domain] = self.metrics(logits[rows], y[rows])
        return found | {DOMAINS: domains} if domains else found
