"""
The coefficients of pooled data, without pooling
================================================

``logistic`` solves a logistic regression by Newton's method over exact sums. Its coefficients are those
that scikit-learn finds on the pooled rows: here of three hospitals with heart disease, which are inside
the package.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.linear_model import LogisticRegression

from fedilc import train
from fedilc.config import read_experiment

RIDGE = 0.01
settings, folder = read_experiment("heart-disease", ["algorithm=logistic", f"weight_decay={RIDGE}"])
federation = settings.data.build(0, folder)
result = train(federation, settings.model.build(federation, 0), "logistic", **settings.options())
federated = torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])

x = torch.cat([silo.x for silo in federation.silos]).double().numpy()
y = torch.cat([silo.y for silo in federation.silos]).numpy()
pooled = LogisticRegression(C=1 / (len(y) * RIDGE), tol=1e-12, solver="newton-cholesky").fit(x, y)

figure, axes = plt.subplots(figsize=(4.8, 4.6), layout="constrained")
axes.axline((0, 0), slope=1, color="lightgrey")
axes.plot([*pooled.coef_[0], *pooled.intercept_], federated.numpy(), "o", markersize=4)
gap = abs(pooled.coef_[0] - federated[:-1].double().numpy()).max()
axes.set(xlabel="pooled (scikit-learn)", ylabel="federated", title=f"largest difference {gap:.0e}")
plt.show()
