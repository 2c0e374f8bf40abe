"""
Local steps: fewer rounds, other ends
=====================================

With K local steps a silo sends the change of its weights in place of a gradient. More steps need fewer
rounds, until the silos' own directions begin to matter.
"""

import matplotlib.pyplot as plt

from fedilc import Algorithm, LocalSteps, train
from fedilc.config import read_experiment

settings, folder = read_experiment("color-digits")
federation = settings.data.build(0, folder)

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for steps in (1, 5, 20):
    algorithm = Algorithm(update=LocalSteps(steps=steps, learning_rate=0.1), optimizer="sgd")
    model = settings.model.build(federation, seed=0)
    history = train(federation, model, algorithm, rounds=30, learning_rate=1.0).history
    axes.plot(range(1, 31), [record["validation_loss"] for record in history], label=f"K = {steps}")
axes.set(xlabel="round", ylabel="validation loss, mean over silos")
axes.legend()
plt.show()
