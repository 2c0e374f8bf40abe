"""What readers compare federated methods with: a constant prediction, regressions and boosted trees.

Regressions and trees are trained on examples that lie in one place: those of all training silos together
("pooled"), or a site's own ("alone"). Trees are those of scikit-learn, and so are regressions of several
classes or many columns; all others are fitted by Newton's method (`regressions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of

CHOSEN, NULL, POOLED, ALONE = "chosen", "null", "pooled", "site alone"
POOLED_TREES = "pooled trees"
_POOLED_REGRESSIONS = {True: "pooled logistic", False: "pooled ridge"}
_ALONE_REGRESSIONS = {True: "alone logistic", False: "alone ridge"}
ESTIMATED = (*_POOLED_REGRESSIONS.values(), POOLED_TREES)  # by scikit-learn, over the training silos
ON_POOLED_DATA = (POOLED, *ESTIMATED)

TREE_DEPTHS, TREE_RATE, MAX_TREES, TREES_PER_SCORE = (1, 2, 3), 0.1, 200, 10

Array = NDArray[np.float64]


def has_sklearn() -> bool:
    """Return whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


def pooled_regression(loss: LossName) -> str:
    """Return the name of the regression on pooled examples: logistic for classes, ridge for quantities."""
    return _POOLED_REGRESSIONS[has_classes(loss)]


def alone_regression(loss: LossName) -> str:
    """Return the name of the regression on a site's own examples."""
    return _ALONE_REGRESSIONS[has_classes(loss)]


def kind_of(method: str) -> str:
    """Return whose examples a method sees together.

    >>> [kind_of(name) for name in ("fedavg", "pooled trees", "alone ridge", "null", "chosen")]
    ['federated', 'pooled', 'alone', 'null', 'federated']
    """
    if method in ON_POOLED_DATA:
        return "pooled"
    if method == ALONE or method in _ALONE_REGRESSIONS.values():
        return "alone"
    return NULL if method == NULL else "federated"


def null_outputs(loss: LossName, outputs: int, labels: Sequence[NDArray[Any]], rows: int) -> Array:
    """Return the prediction of a model without features, for so many examples.

    It is the log odds of the share of events at the training silos together, the logarithms of their classes'
    frequencies, or the mean of their quantities. A class that no training silo has counts as half an example.

    >>> null_outputs("binary", 1, [np.array([0, 1]), np.array([0, 0])], 1).round(4)
    array([[-1.0986]])
    """
    y = np.concatenate(labels)
    if not has_classes(loss):
        return np.full((rows, 1), float(y.mean()))
    binary = task_of(loss) == "binary"
    counts = np.bincount(y.astype(int), minlength=2 if binary else outputs)
    logs = np.log(np.maximum(counts, 0.5))
    return np.tile(logs[1:] - logs[0] if binary else logs - np.log(len(y)), (rows, 1))


@dataclass(frozen=True)
class Regression:
    """A logistic or ridge regression with one output, which is a logit or a value."""

    weights: Array  # the intercept, then the coefficients

    @staticmethod
    def takes(method: str, loss: LossName, x: Array, y: Array) -> bool:
        """Return whether a comparator is such a regression; the others are those of scikit-learn."""
        several = has_classes(loss) and (task_of(loss) != "binary" or len(np.unique(y)) < 2)
        return method != POOLED_TREES and not several and x.shape[1] <= _NEWTON_COLUMNS

    @property
    def coefficients(self) -> dict[str, Array]:
        """Return coefficients (1, columns) and intercept."""
        return {"coefficients": self.weights[None, 1:], "intercept": self.weights[:1]}

    def outputs(self, x: Array) -> Array:
        """Return one row per example."""
        found: Array = (x @ self.weights[1:] + self.weights[0])[:, None]
        return found

    def staged(self, x: Array) -> Iterator[tuple[int, Array]]:
        """Yield 1 and the outputs, as `Estimator` does."""
        yield 1, self.outputs(x)


@dataclass(frozen=True)
class Estimator:
    """A trained model of scikit-learn, whose outputs are logits or values."""

    model: Any
    classes: int | None
    trees: bool

    @classmethod
    def of(
        cls, method: str, loss: LossName, outputs: int, options: Mapping[str, Any], x: Array, y: Array
    ) -> Estimator:
        """Train on these examples.

        Args:
            method: "pooled trees", or the name of a regression.
            loss: of the data.
            outputs: of a network for these data.
            options: "weight_decay", the ridge per example, of a regression; "max_depth", "learning_rate" and
                "rounds", the number of trees, of trees.
            x: inputs, one row per example.
            y: labels as they are learned.
        """
        from sklearn.dummy import DummyClassifier
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression, Ridge

        model: Any
        if has_classes(loss) and len(np.unique(y)) < 2:
            model = DummyClassifier()
        elif method == POOLED_TREES:
            made = HistGradientBoostingClassifier if has_classes(loss) else HistGradientBoostingRegressor
            model = made(
                max_iter=options["rounds"],
                max_depth=options["max_depth"],
                learning_rate=options["learning_rate"],
                early_stopping=False,
                random_state=0,
            )
        elif has_classes(loss):
            ridge = len(x) * options["weight_decay"]
            wide = x.shape[1] * outputs > _NEWTON_COLUMNS
            how: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 100}
            how = {"solver": "lbfgs", "tol": 1e-4, "max_iter": 5000} if wide else how
            model = LogisticRegression(C=1 / ridge, **how)
        else:
            model = Ridge(alpha=len(x) * options["weight_decay"], solver="cholesky")
        with _thread_pools().limit(limits=1):  # sums in one order, whatever the number of cores
            model.fit(x, y)
        wanted = {"binary": 2, "multiclass": outputs, "regression": None}[task_of(loss)]
        return cls(model, wanted, method == POOLED_TREES)

    @property
    def coefficients(self) -> dict[str, Array]:
        """Return those of a regression."""
        found = {"coefficients": "coef_", "intercept": "intercept_"}
        return {
            name: np.atleast_1d(getattr(self.model, attribute))
            for name, attribute in found.items()
            if hasattr(self.model, attribute)
        }

    def outputs(self, x: Array) -> Array:
        """Return one row per example: a logit, a logit per class, or a value."""
        if self.classes is None:
            return np.asarray(self.model.predict(x), float).reshape(len(x), 1)
        if not hasattr(self.model, "decision_function"):
            return self._logits(np.zeros((len(x), 1)))
        return self._logits(self.model.decision_function(x))

    def staged(self, x: Array) -> Iterator[tuple[int, Array]]:
        """Yield the number of trees and the outputs with so many; of a regression 1 and its outputs."""
        stages = "staged_predict" if self.classes is None else "staged_decision_function"
        if not self.trees or not hasattr(self.model, stages):
            yield 1, self.outputs(x)
            return
        for number, values in enumerate(getattr(self.model, stages)(x), 1):
            if number % TREES_PER_SCORE == 0:
                yield number, values.reshape(len(x), 1) if self.classes is None else self._logits(values)

    def _logits(self, values: Array) -> Array:
        """Return a logit (two classes) or one per class, also of classes that no training example has."""
        present = self.model.classes_.astype(int)
        columns = values.reshape(len(values), -1)
        if len(present) == 2:
            columns = np.hstack([np.zeros_like(columns), columns])
        found = np.full((len(values), self.classes or 1), columns.min() - _UNSEEN)
        found[:, present] = columns
        return found[:, 1:] - found[:, :1] if self.classes == 2 else found


@cache
def _thread_pools() -> Any:
    """Return what limits the threads of scikit-learn's libraries; finding these takes as long as a fit."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()


_NEWTON_COLUMNS = 1000  # the Hessian of more coefficients costs more than L-BFGS needs
_UNSEEN = 10.0  # logits that a class without training examples lies below all others
