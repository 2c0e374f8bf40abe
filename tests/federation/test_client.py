"""What a silo replies: its gradient and penalty gradient, added up or apart, and its metrics."""

from __future__ import annotations

import pytest
import torch
from networks import mlp

from fedilc import Federation, Silo
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.errors import ProtocolError
from fedilc.federation import Program, Reply, Request, SiloClient
from fedilc.gradients import Loss, ModelRunner
from fedilc.runtimes.local import LocalRuntime

WEIGHTS = {name: parameter.detach() for name, parameter in mlp().named_parameters()}


def silo(domains: list[str] | None = None, validation: bool = True) -> Silo:
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > 0).long()
    return Silo("a", x, y, x[:4], y[:4], domains=domains) if validation else Silo("a", x, y)


def client(algorithm: str, own: Silo | None = None) -> SiloClient:
    options = Options(rounds=1, learning_rate=0.1)
    program = Program.of(find_algorithm(algorithm)[1], "binary", options, mlp())
    runner = ModelRunner(mlp(), Loss("binary"))
    runtime = LocalRuntime(
        Federation("f", [own or silo()]), runner, program, lambda _logits, y: {"n": float(len(y))}
    )
    next(runtime.ask(request("evaluate")))
    return runtime.clients["a"]


def request(step: str, **more: object) -> Request:
    return Request(step, 1, 0, ("a", "b"), WEIGHTS, **more)


def matched(algorithm: str, penalty_weight: float) -> Reply:
    one = client(algorithm)
    statistic = one.answer(request("statistics")).tensors
    mean = {group: {name: 0.5 * t for name, t in named.items()} for group, named in statistic.items()}
    numbers = {"penalty_weight": penalty_weight}
    return one.answer(request("matched-update", tensors=mean, numbers=numbers))


def test_lambda_times_the_penalty_gradient_is_added_in_the_silo_if_inter_is_a_mean() -> None:
    apart, together = matched("fishr-inter-geo", 3.0), matched("fedcurv", 3.0)
    assert set(together.tensors) == {"gradient"}
    for name, gradient in apart.tensors["gradient"].items():
        expected = gradient + 3.0 * 2 * apart.tensors["penalty"][name]
        assert torch.allclose(together.tensors["gradient"][name], expected, rtol=1e-5, atol=1e-7)
    assert apart.numbers == together.numbers


def test_metrics_are_of_the_whole_validation_set_and_of_each_sub_domain() -> None:
    own = silo(domains=["ward", "icu", "ward", "ward"])
    reply = client("fedsgd", own).answer(request("evaluate"))
    assert reply.metrics == {"n": 4.0, "domains": {"ward": {"n": 3.0}, "icu": {"n": 1.0}}}


def test_a_silo_without_a_validation_set_has_no_metrics() -> None:
    assert client("fedsgd", silo(validation=False)).answer(request("evaluate")).metrics == {}


def test_a_step_that_the_program_does_not_have_is_refused() -> None:
    with pytest.raises(ProtocolError, match="step 'statistics' is unknown to silo 'a'"):
        client("fedsgd").answer(request("statistics"))
