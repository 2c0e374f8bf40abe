"""
The order of replies
====================

Floating-point sums depend on the order in which replies arrive. Here 100 replies are added in 500
orders: in float32 the mean takes many values, in exact sums one. That is why a run over a network has
the bits of a run in one process.
"""

import matplotlib.pyplot as plt
import torch

from fedilc.aggregation import Mean

random = torch.Generator().manual_seed(0)
replies = torch.randn(100, generator=random) * 10.0 ** torch.randint(-3, 3, (100,), generator=random)
truth = replies.double().mean().item()

rule = Mean()
plain, exact = [], []
for _ in range(500):
    total, state = torch.tensor(0.0), rule.zero({"w": replies[:1]})
    for value in replies[torch.randperm(100, generator=random)].reshape(-1, 1):
        total += value.item()
        state = rule.accumulate(state, {"w": value})
    plain.append((total.item() / 100 - truth) / abs(truth))
    exact.append((rule.finalize(state).value["w"].item() - truth) / abs(truth))

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.hist(plain, bins=40, label=f"float32: {len(set(plain))} values")
axes.axvline(exact[0], color="C1", linewidth=2, label=f"exact sums: {len(set(exact))} value")
axes.set(xlabel="relative error of the mean", ylabel="orders")
axes.legend()
plt.show()
