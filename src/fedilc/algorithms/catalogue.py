"""The catalogue of algorithms, each a choice of parts. This file needs no torch."""

from __future__ import annotations

from fedilc.algorithms.algorithm import NEWTON, Algorithm
from fedilc.algorithms.parts import LocalSteps

PAPER = ("fedsgd", "geometric", "fedcurv", "fishr-intra-arith", "fishr-inter-geo", "fishr-intra-geo")

_EPOCH = LocalSteps(epochs=1, batch_size=32)
_SERVER = {"learning_rate": 1.0, "weight_decay": 0.0}
_NEWTON = {"learning_rate": 1.0, "weight_decay": 1e-3}

CATALOGUE: dict[str, Algorithm] = {
    "fedsgd": Algorithm(
        summary="arithmetic mean of the silos' gradients; each silo counts equally, whatever its size",
    ),
    "geometric": Algorithm(
        inter="geometric",
        summary="weighted geometric mean of the silos' gradients",
    ),
    "fedcurv": Algorithm(
        penalty="fishr",
        summary="arithmetic mean, with the Fishr penalty",
    ),
    "fishr-intra-arith": Algorithm(
        intra="mean",
        penalty="fishr",
        summary="mean over environments inside a silo, with Fishr; the same as fedcurv if sizes are equal",
    ),
    "fishr-inter-geo": Algorithm(
        inter="geometric",
        penalty="fishr",
        summary="weighted geometric mean across silos, with the Fishr penalty",
    ),
    "fishr-intra-geo": Algorithm(
        intra="geometric",
        penalty="fishr",
        summary="weighted geometric mean over environments inside a silo, with the Fishr penalty",
    ),
    "fedavg": Algorithm(
        update=_EPOCH,
        silo_weights="examples",
        optimizer="sgd",
        defaults=_SERVER,
        summary="mean of the silos' updates after an epoch of local steps, weighted by examples",
    ),
    "fedprox": Algorithm(
        update=LocalSteps(epochs=1, batch_size=32, proximal=0.01),
        silo_weights="examples",
        optimizer="sgd",
        defaults=_SERVER,
        summary="fedavg whose local steps are kept near the weights they start from",
    ),
    "scaffold": Algorithm(
        update=LocalSteps(epochs=1, batch_size=32, control_variates=True),
        optimizer="sgd",
        defaults=_SERVER,
        summary="fedavg whose local steps are corrected by control variates that silos keep",
    ),
    "fedadam": Algorithm(
        update=_EPOCH,
        silo_weights="examples",
        optimizer="fedadam",
        defaults={"learning_rate": 0.01, "weight_decay": 0.0},
        summary="fedavg with Adam on the server, without bias correction",
    ),
    "fedyogi": Algorithm(
        update=_EPOCH,
        silo_weights="examples",
        optimizer="yogi",
        defaults={"learning_rate": 0.01, "weight_decay": 0.0},
        summary="fedavg with Yogi on the server",
    ),
    "fedavg-geo": Algorithm(
        update=_EPOCH,
        inter="geometric",
        optimizer="sgd",
        defaults=_SERVER,
        summary="weighted geometric mean of the silos' updates after an epoch of local steps",
    ),
    "agreed-geometric": Algorithm(
        inter="geometric",
        optimizer="layeradam",
        defaults={"agreement": 0.5},
        summary="geometric, without coordinates whose signs disagree; the server keeps their proportions",
    ),
    "fishr-inter-geo-local": Algorithm(
        update=LocalSteps(steps=5),
        inter="geometric",
        penalty="fishr",
        summary="weighted geometric mean of updates after local steps with the Fishr penalty",
    ),
    "vrex": Algorithm(penalty="vrex", summary="arithmetic mean; the silos' mean losses are matched (V-REx)"),
    "coral": Algorithm(
        penalty="coral", summary="arithmetic mean; mean and covariance of the features are matched (CORAL)"
    ),
    "iga": Algorithm(penalty="iga", summary="arithmetic mean; the silos' mean gradients are matched (IGA)"),
    "irm": Algorithm(
        penalty="irm",
        summary="arithmetic mean; one scale of the logits should be optimal in every silo (IRM)",
    ),
    "and-mask": Algorithm(
        inter="and-mask",
        summary="mean of the coordinates whose signs agree in all silos; the others become 0",
    ),
    "group-dro": Algorithm(
        silo_weights="group-dro", summary="mean whose weights grow with the losses of the silos (group DRO)"
    ),
    "afl": Algorithm(silo_weights="afl", summary="mean weighted for the worst mixture of silos (AFL)"),
    "q-ffl": Algorithm(silo_weights="q-ffl", summary="mean weighted by powers of the silos' losses (q-FFL)"),
    "trimmed-mean": Algorithm(
        inter="trimmed-mean",
        summary="mean of the silos' gradients without the smallest and largest values of each coordinate",
    ),
    "logistic": Algorithm(
        update=NEWTON,
        silo_weights="examples",
        optimizer=NEWTON,
        defaults=_NEWTON,
        losses=("binary",),
        summary="logistic regression with a ridge (weight_decay) by Newton's method, as on pooled data",
    ),
    "ridge": Algorithm(
        update=NEWTON,
        silo_weights="examples",
        optimizer=NEWTON,
        defaults=_NEWTON,
        losses=("regression",),
        summary="linear regression with a ridge (weight_decay), as on pooled data",
    ),
    "median": Algorithm(
        inter="median", summary="median of the silos' gradients in each coordinate; each silo counts equally"
    ),
}
