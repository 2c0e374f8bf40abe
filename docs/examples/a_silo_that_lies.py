"""
A silo that lies
================

One of seven silos has the opposite of every label. A mean follows it, and so does a geometric mean:
agreement is no protection against a silo that lies. A trimmed mean and a median drop its values. With
honest silos they lose nothing here.
"""

import matplotlib.pyplot as plt
import torch

from fedilc import Federation, Silo, train

random = torch.Generator().manual_seed(3)


def site(name: str, honest: bool = True) -> Silo:
    """Return 100 examples of ten columns; a silo that lies has the opposite labels."""
    x = torch.randn(100, 10, generator=random)
    label = x[:, 0] - x[:, 1] + 0.5 * torch.randn(100, generator=random) > 0
    return Silo(name, x, (label if honest else ~label).float())


test = site("new")
honest = [site(f"site {number}") for number in range(6)]
federations = {
    "all honest": Federation("honest", [*honest, site("site 6")], test.x, test.y),
    "one lies": Federation("one lies", [*honest, site("site 6", honest=False)], test.x, test.y),
}

names = ("fedsgd", "geometric", "trimmed-mean", "median")
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for shift, (title, federation) in enumerate(federations.items()):
    losses = []
    for name in names:
        torch.manual_seed(0)
        result = train(federation, torch.nn.Linear(10, 1), name, rounds=60, learning_rate=0.05)
        losses.append(result.history[-1]["test_loss"])
    axes.bar([number + 0.4 * shift for number in range(len(names))], losses, 0.38, label=title)
axes.set(
    ylabel="loss at a new site", xticks=[number + 0.2 for number in range(len(names))], xticklabels=names
)
axes.legend()
plt.show()
