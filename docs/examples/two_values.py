"""
What becomes of two values
==========================

The weighted geometric mean of two values, beside the arithmetic mean. Where both are large and of one
sign, the two agree. Near an axis, where only one silo has a gradient, the geometric mean is much
smaller.
"""

import matplotlib.pyplot as plt
import torch

from fedilc import weighted_geometric_mean

line = torch.linspace(-2, 2, 201)
first, second = torch.meshgrid(line, line, indexing="xy")
pairs = torch.stack([first, second])

figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for axes, name, values in zip(
    panels, ("mean", "weighted geometric mean"), (pairs.mean(0), weighted_geometric_mean(pairs)), strict=True
):
    filled = axes.contourf(line, line, values, levels=torch.linspace(-2, 2, 17), cmap="RdBu")
    axes.set(title=name, xlabel="north's gradient", aspect="equal")
panels[0].set_ylabel("south's gradient")
figure.colorbar(filled, ax=panels, label="step of the weight")
plt.show()
