"""
How many examples make one vote
===============================

Inside a silo, the geometric mean is over *environments*: sets of examples, each with one vote. The fewer
examples a vote has, the further the result points away from the mean gradient once a model has learned
something, because few hard examples count less than many easy ones. So environments of 32 to 128
examples are a good choice.
"""

import matplotlib.pyplot as plt
import torch
from torch.func import functional_call, grad, vmap

from fedilc import weighted_geometric_mean

random = torch.Generator().manual_seed(0)
x = torch.randn(1024, 20, generator=random)
y = (x[:, 0] + 0.5 * x[:, 1] + torch.randn(1024, generator=random) > 0).float()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
weights = dict(model.named_parameters())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
    optimizer.step()


def loss(parameters, one, label):
    """Return the loss of one example."""
    logit = functional_call(model, parameters, (one,)).squeeze()
    return torch.nn.functional.binary_cross_entropy_with_logits(logit, label)


# %%
# The gradients of single examples are formed here to show the idea; the package computes votes without them.

each = vmap(grad(loss), (None, 0, 0))(weights, x, y)
rows = torch.cat([values.flatten(1) for values in each.values()], dim=1)
mean = rows.mean(0)
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
cosines = []
for size in sizes:
    votes = weighted_geometric_mean(rows.unflatten(0, (-1, size)).mean(1))
    cosines.append(torch.cosine_similarity(votes, mean, dim=0).item())

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.semilogx(sizes, cosines, "o-", base=2)
axes.set(
    xlabel="examples per environment", ylabel="cosine with the mean gradient", xticks=sizes, xticklabels=sizes
)
plt.show()
