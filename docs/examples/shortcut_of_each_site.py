"""
A shortcut of each site's own
=============================

Ten sites share eight weak columns. Each also has six columns that predict the label there and are noise
elsewhere. Averaging gradients learns the shortcuts; the geometric mean keeps what the sites agree on.
The price is accuracy at the training sites.
"""

import matplotlib.pyplot as plt

from fedilc import train
from fedilc.config import read_experiment

settings, folder = read_experiment("site-shortcuts")
federation = settings.data.build(0, folder)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for name in ("fedsgd", "geometric", "agreed-geometric"):
    experiment, _ = read_experiment("site-shortcuts", [f"algorithm={name}", "rounds=60"])
    model = experiment.model.build(federation, seed=0)
    history = train(federation, model, name, **experiment.options()).history
    for axes, key in zip(panels, ("test_accuracy", "validation_accuracy"), strict=True):
        records = [record for record in history if key in record]
        axes.plot([record["round"] for record in records], [record[key] for record in records], label=name)
panels[0].set(title="new site", xlabel="round", ylabel="accuracy")
panels[1].set(title="training sites", xlabel="round")
panels[1].legend()
plt.show()
