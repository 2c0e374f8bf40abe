"""
Variances that become alike
===========================

The Fishr penalty is the distance of each silo's variance of gradients from the mean over silos. With a
larger lambda it falls faster, and the training loss rises a little: the model gives up what only some
silos offer.
"""

import matplotlib.pyplot as plt

from fedilc import train
from fedilc.config import read_experiment

settings, folder = read_experiment("color-digits", ["algorithm=fedcurv", "rounds=60"])
federation = settings.data.build(0, folder)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for weight in (0.0, 1.0, 10.0, 100.0):
    options = settings.options() | {"penalty_weight": weight or 1e-9, "penalty_anneal_rounds": 0}
    history = train(federation, settings.model.build(federation, seed=0), "fedcurv", **options).history
    rounds = [record["round"] for record in history]
    panels[0].semilogy(rounds, [record["penalty"] for record in history], label=f"lambda {weight:g}")
    panels[1].plot(rounds, [record["train_loss"] for record in history])
panels[0].set(title="distance of the variances", xlabel="round")
panels[1].set(title="training loss", xlabel="round")
panels[0].legend()
plt.show()
