"""Silos in this process: asked in order, and opened one at a time if they are not resident."""

from __future__ import annotations

from dataclasses import replace

import torch
from networks import mlp

from fedilc import Federation, Silo
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.data.silo_store import SiloStore
from fedilc.federation import Program, Request
from fedilc.gradients import Loss, ModelRunner
from fedilc.runtimes.local import LocalRuntime

WEIGHTS = {name: parameter.detach() for name, parameter in mlp().named_parameters()}


def runtime(resident: bool = True, **limits: int) -> LocalRuntime:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    silos = {name: Silo(name, x + place, [0, 1] * 4) for place, name in enumerate("abc")}
    store = SiloStore.of(Federation("f", list(silos.values())))
    if not resident:
        store = replace(store, held=None, make=silos.__getitem__)
    options, model = Options(rounds=1, learning_rate=0.1), mlp()
    program = Program.of(find_algorithm("fishr-inter-geo")[1], "binary", options, model)
    runner = ModelRunner(model, Loss("binary"))
    return LocalRuntime(store, runner, program, lambda _logits, _y: {}, **limits)


def test_silos_reply_in_the_order_in_which_they_are_asked() -> None:
    replies = runtime().ask(Request("statistics", 1, 0, ("c", "a"), WEIGHTS))
    assert [reply.silo for reply in replies] == ["c", "a"]


def test_silos_that_are_not_resident_are_not_kept_and_give_the_same_bits() -> None:
    request = Request("statistics", 1, 0, ("a", "b", "c"), WEIGHTS)
    kept, dropped = runtime(), runtime(resident=False)
    for one, other in zip(kept.ask(request), dropped.ask(request), strict=True):
        ((name, named),) = one.tensors.items()
        assert torch.equal(named[name], other.tensors[name][name])
    assert set(kept.clients) == {"a", "b", "c"}
    assert dropped.clients == {}


def test_forward_passes_are_kept_only_up_to_the_limit() -> None:
    request = Request("statistics", 1, 0, ("a", "b", "c"), WEIGHTS)
    without, unlimited = runtime(kept_bytes=0), runtime()
    assert [len(list(one.ask(request))) for one in (without, unlimited)] == [3, 3]
    assert sum(client.computation.kept_bytes for client in without.clients.values()) == 0
    assert all(client.computation.kept_bytes > 0 for client in unlimited.clients.values())
