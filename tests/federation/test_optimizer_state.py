"""An optimiser continues from its state as tensors, and a step is undone to the bit."""

from __future__ import annotations

import math

import pytest
import torch

from fedilc.federation.optimizer_state import Undo, all_finite, optimizer_tensors, restore_optimizer


def stepped(name: str, steps: int) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = getattr(torch.optim, name)([w], lr=0.1)
    for _ in range(steps):
        step(w, optimizer)
    return w, optimizer


def step(w: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    w.grad = w.detach() * 2 + 1
    optimizer.step()


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "NAdam"])
def test_a_restored_optimizer_takes_the_same_next_step(name: str) -> None:
    w, optimizer = stepped(name, 3)
    other = torch.nn.Parameter(w.detach().clone())
    restored = getattr(torch.optim, name)([other], lr=0.1)
    restore_optimizer(restored, {key: t.clone() for key, t in optimizer_tensors(optimizer).items()})
    step(w, optimizer)
    step(other, restored)
    assert torch.equal(w, other)


def test_a_step_is_undone_to_the_bit() -> None:
    w, optimizer = stepped("Adam", 2)
    before = w.detach().clone(), {key: t.clone() for key, t in optimizer_tensors(optimizer).items()}
    undo = Undo({"w": w.detach()}, optimizer)
    w.grad = torch.full_like(w, math.inf)
    optimizer.step()
    assert not all_finite({"w": w.detach()}, optimizer)
    undo.restore({"w": w.detach()}, optimizer)
    assert all_finite({"w": w.detach()}, optimizer)
    assert torch.equal(w, before[0])
    assert all(torch.equal(t, before[1][key]) for key, t in optimizer_tensors(optimizer).items())
