"""FedILC as scikit-learn estimators: groups are silos, so that `LeaveOneGroupOut` holds out one silo."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedilc.algorithms.loss_registry import LossName
from fedilc.api import train, train_many
from fedilc.data import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.errors import FedILCWarning
from fedilc.models import build_model
from fedilc.training.stack import StackedRun

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        MetaEstimatorMixin,
        RegressorMixin,
        clone,
        is_classifier,
    )
    from sklearn.metrics import check_scoring
    from sklearn.model_selection import LeaveOneGroupOut, ParameterGrid, check_cv
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import _safe_indexing, check_random_state, get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "the estimators need scikit-learn 1.6 or newer; install it with: pip install 'fedilc[sklearn]'"
    ) from error

Floats = NDArray[np.float64]


class _FedILC(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the estimators: a multilayer perceptron that is trained over groups as silos."""

    def __init__(
        self,
        algorithm: str = "fishr-inter-geo",
        *,
        hidden: Sequence[int] = (64, 64),
        rounds: int = 200,
        learning_rate: float = 0.003,
        weight_decay: float = 0.0,
        penalty_weight: float = 1.0,
        environment_size: int | None = None,
        scale: bool = True,
        random_state: Any = 0,
        device: str = "auto",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.hidden = hidden
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.penalty_weight = penalty_weight
        self.environment_size = environment_size
        self.scale = scale
        self.random_state = random_state
        self.device = device
        self.options = options

    def _prepared(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> StackedRun:  # noqa: N803 - scikit-learn's name
        """Check examples and labels, and return the run that trains on them."""
        raise NotImplementedError

    def _fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> None:  # noqa: N803 - scikit-learn's name
        run = self._prepared(X, y, groups)
        result = train(SiloStore.of(run.federation), run.model, run.algorithm, **run.settings)
        self._keep(result.model, result.history)

    def _keep(self, model: nn.Module, history: list[dict[str, Any]]) -> None:
        """Keep the network of the last round in float64."""
        self.history_ = history
        self.model_ = model.cpu().double()

    def _run(
        self, x: Floats, y: NDArray[Any], groups: ArrayLike | None, loss: LossName, outputs: int
    ) -> StackedRun:
        """Return a run with one silo per group."""
        if groups is None:
            warnings.warn(
                "fit without groups treats all examples as one silo; give groups=..., the silo of each "
                "example (inside cross_validate, a search or a pipeline: set_fit_request(groups=True), after "
                "sklearn.set_config(enable_metadata_routing=True))",
                FedILCWarning,
                stacklevel=5,
            )
            groups = np.zeros(len(x), dtype=int)
        check_consistent_length(x, groups)
        names = column_or_1d(groups)
        if any(name is None or name != name for name in names):
            raise ValueError("groups has missing values; name the silo of each example, or drop these rows")
        self.silos_, silo = np.unique(names, return_inverse=True)
        self.scaler_ = StandardScaler(with_mean=self.scale, with_std=self.scale).fit(x)
        inputs = self.scaler_.transform(x).astype(np.float32)
        silos = [
            Silo(str(name), inputs[silo == number], y[silo == number])
            for number, name in enumerate(self.silos_)
        ]
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31)
        settings = {
            "rounds": self.rounds,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "penalty_weight": self.penalty_weight,
            "environment_size": self.environment_size,
            "seed": int(seed),
            "device": self.device,
            **(self.options or {}),
        }
        model = build_model("mlp", inputs.shape[1:], outputs, int(seed), hidden=list(self.hidden))
        return StackedRun(Federation("groups", silos, loss=loss), model, self.algorithm, settings)

    @torch.no_grad()
    def _logits(self, x: ArrayLike) -> Tensor:
        check_is_fitted(self, "model_")
        inputs = self.scaler_.transform(validate_data(self, x, reset=False, dtype=np.float64))
        found: Tensor = self.model_(torch.from_numpy(inputs))
        return found


class FedILCClassifier(ClassifierMixin, _FedILC):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that is trained over groups as silos, so that it works for a held-out group.

    Args:
        algorithm: name from `fedilc.algorithms`.
        hidden: widths of the network's hidden layers.
        rounds: number of rounds, in each of which the server takes one step; the model is that of the last
            round.
        learning_rate: server learning rate.
        weight_decay: weight decay of the server's optimiser.
        penalty_weight: lambda, the weight of the algorithm's penalty.
        environment_size: examples per environment inside a silo; None is the whole silo.
        scale: whether inputs are standardised, by the mean and deviation over all training silos (these
            follow from counts, sums and sums of squares, so that silos need not share an example).
        random_state: source of every random choice: a number, the same in every fit; a
            `numpy.random.RandomState`, from which each fit draws another number; or None, for numpy's own.
        device: "auto", "cpu", "cuda", ...
        options: further settings of `fedilc.train`, such as {"balance": "weights"}.

    Attributes:
        classes_: labels, in the order of `predict_proba`'s columns.
        silos_: groups in the training data.
        history_: one record per round, as `fedilc.Result` has them.
        model_: the trained network, from standardised inputs to logits.

    Raises:
        ValueError: by `fit`, if examples, labels or groups cannot be used; errors of this package are
            `ValueError` too.

    >>> import numpy as np
    >>> x = np.repeat([[0.0], [1.0], [4.0], [5.0]], 5, axis=0)
    >>> y, site = np.repeat(["no", "yes"], 10), np.tile(["north", "south"], 10)
    >>> model = FedILCClassifier(rounds=30, hidden=(8,), learning_rate=0.1).fit(x, y, groups=site)
    >>> [str(label) for label in model.predict([[0.0], [5.0]])]
    ['no', 'yes']
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> FedILCClassifier:  # noqa: N803 - scikit-learn's name
        """Train on examples X with labels y; `groups` names the silo of each example."""
        self._fit(X, y, groups)
        return self

    def _prepared(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> StackedRun:  # noqa: N803 - scikit-learn's name
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class ({self.classes_[0]!r}); a classifier needs at least two")
        binary = len(self.classes_) == 2
        outputs = 1 if binary else len(self.classes_)
        return self._run(x, codes, groups, "binary" if binary else "multiclass", outputs)

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's name
        """Return the probability of each class, in the order of `classes_`."""
        logits = self._logits(X)
        if len(self.classes_) > 2:
            return np.asarray(logits.softmax(1))
        positive = logits.sigmoid()
        return np.asarray(torch.cat([1 - positive, positive], 1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803 - scikit-learn's name
        """Return the most probable class of each example."""
        place = self.predict_proba(X).argmax(1)
        chosen: NDArray[Any] = self.classes_[place]
        return chosen


class FedILCRegressor(RegressorMixin, _FedILC):  # type: ignore[misc]  # scikit-learn has no types
    """A regressor that is trained over groups as silos, so that it works for a held-out group.

    Labels are standardised like inputs, and predictions are in the labels' own unit. The loss is the squared
    error.

    Args:
        algorithm: name from `fedilc.algorithms`.
        hidden: widths of the network's hidden layers.
        rounds: number of rounds, in each of which the server takes one step; the model is that of the last
            round.
        learning_rate: server learning rate.
        weight_decay: weight decay of the server's optimiser.
        penalty_weight: lambda, the weight of the algorithm's penalty.
        environment_size: examples per environment inside a silo; None is the whole silo.
        scale: whether inputs are standardised, by the mean and deviation over all training silos.
        random_state: as in `FedILCClassifier`.
        device: "auto", "cpu", "cuda", ...
        options: further settings of `fedilc.train`.

    Attributes:
        silos_: groups in the training data.
        history_: one record per round, as `fedilc.Result` has them.
        model_: the trained network, from standardised inputs to standardised labels.

    Raises:
        ValueError: by `fit`, if examples, labels or groups cannot be used; errors of this package are
            `ValueError` too.

    >>> import numpy as np
    >>> x = np.arange(8.0)[:, None]
    >>> model = FedILCRegressor(rounds=60, hidden=(8,), learning_rate=0.03)
    >>> bool(abs(model.fit(x, 3 * x[:, 0], groups=np.arange(8) % 2).predict([[4.0]])[0] - 12) < 3)
    True
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> FedILCRegressor:  # noqa: N803 - scikit-learn's name
        """Train on examples X with quantities y; `groups` names the silo of each example."""
        self._fit(X, y, groups)
        return self

    def _prepared(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> StackedRun:  # noqa: N803 - scikit-learn's name
        x, labels = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self.label_scaler_ = StandardScaler().fit(labels[:, None])
        return self._run(x, self.label_scaler_.transform(labels[:, None])[:, 0], groups, "regression", 1)

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's name
        """Return the quantity of each example."""
        outputs = self._logits(X).numpy()
        found: Floats = self.label_scaler_.inverse_transform(outputs)[:, 0]
        return found


class FedILCSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A grid search over one of the estimators above that trains all models of the grid at once.

    It is used as `GridSearchCV` is. Models of one algorithm and network, whatever their fold, learning rate,
    weight decay, penalty weight, rounds and seed, are trained in lockstep as one tensor
    (`fedilc.api.train_many`), which takes a fraction of the time that they take one after the other. Their
    scores are those of single fits up to rounding; `best_estimator_` is a single fit.

    Args:
        estimator: a `FedILCClassifier` or `FedILCRegressor`.
        param_grid: values of its parameters by name, as in `{"learning_rate": [0.01, 0.1]}`, or several such
            grids in a list.
        cv: folds, as scikit-learn takes them; None leaves each group out in turn, or makes five folds without
            groups.
        scoring: a score by name or a scorer; None is the estimator's own.

    Attributes:
        cv_results_: candidates with their scores, by column, as `GridSearchCV` has them, without times.
        best_index_: place of the candidate with the highest mean score, the first one of several.
        best_params_: its parameters.
        best_score_: its mean score.
        best_estimator_: the estimator with these parameters, trained on all examples.
        scorer_: the score.
        n_splits_: number of folds.

    Raises:
        ValueError: by `fit`, if the estimator is another one, or no candidate has a score in every fold.

    >>> import numpy as np
    >>> x = np.repeat([[0.0], [1.0], [4.0], [5.0]], 6, axis=0)
    >>> y, site = np.repeat(["no", "yes"], 12), np.tile(["north", "south", "west"], 8)
    >>> model = FedILCClassifier("fedsgd", rounds=30, hidden=(8,))
    >>> search = FedILCSearchCV(model, {"learning_rate": [1e-6, 0.1]}, scoring="neg_log_loss")
    >>> search.fit(x, y, groups=site).best_params_
    {'learning_rate': 0.1}
    """

    def __init__(
        self, estimator: Any, param_grid: dict[str, Any] | list[Any], *, cv: Any = None, scoring: Any = None
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.cv = cv
        self.scoring = scoring

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, which say what kind of estimator this is."""
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.target_tags = own.estimator_type, own.target_tags
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> FedILCSearchCV:  # noqa: N803 - scikit-learn's name
        """Train every candidate on every fold, score it on the rows left out, and train the best on all."""
        if not isinstance(self.estimator, _FedILC):
            raise ValueError(
                f"FedILCSearchCV takes FedILCClassifier or FedILCRegressor, not "
                f"{type(self.estimator).__name__}; search over a pipeline with GridSearchCV"
            )
        self.scorer_ = check_scoring(self.estimator, self.scoring)
        cv = LeaveOneGroupOut() if self.cv is None and groups is not None else self.cv
        cv = check_cv(cv, y, classifier=is_classifier(self.estimator))
        folds = list(cv.split(X, y, groups))
        candidates = list(ParameterGrid(self.param_grid))
        models, runs = [], []
        for given in candidates:
            for rows, _ in folds:
                model = clone(self.estimator).set_params(**given)
                parts = (None if part is None else _safe_indexing(part, rows) for part in (X, y, groups))
                models.append(model)
                runs.append(model._prepared(*parts))
        scores = np.full(len(models), np.nan)
        for place, (model, found) in enumerate(zip(models, train_many(runs), strict=True)):
            if found.failed is not None:
                warnings.warn(
                    f"{candidates[place // len(folds)]} has no score in a fold: {found.failed}",
                    FedILCWarning,
                    stacklevel=2,
                )
                continue
            rows = folds[place % len(folds)][1]
            model._keep(found.model, found.history)
            scores[place] = self.scorer_(model, _safe_indexing(X, rows), _safe_indexing(y, rows))
        self.n_splits_ = len(folds)
        self.cv_results_ = _search_results(candidates, scores.reshape(len(candidates), len(folds)))
        means = self.cv_results_["mean_test_score"]
        if np.isnan(means).all():
            raise ValueError("no candidate could be trained and scored in every fold; see the warnings")
        self.best_index_ = int(np.nanargmax(means))
        self.best_score_ = float(means[self.best_index_])
        self.best_params_ = candidates[self.best_index_]
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).fit(X, y, groups=groups)
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the labels of a classifier, in the order of `predict_proba`'s columns."""
        found: NDArray[Any] = self._best().classes_
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803 - scikit-learn's name
        """Return what the best estimator predicts."""
        found: NDArray[Any] = self._best().predict(X)
        return found

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's name
        """Return the probabilities of the best classifier."""
        found: Floats = self._best().predict_proba(X)
        return found

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803 - scikit-learn's name
        """Return the score of the best estimator."""
        return float(self.scorer_(self._best(), X, y))

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_


def _search_results(candidates: list[dict[str, Any]], scores: Floats) -> dict[str, Any]:
    """Return the table of a search from the scores of candidates (rows) in folds (columns)."""
    means = scores.mean(1)
    found: dict[str, Any] = {"params": candidates}
    for name in dict.fromkeys(name for given in candidates for name in given):
        column = np.ma.MaskedArray(np.empty(len(candidates), dtype=object), mask=True)
        for place, given in enumerate(candidates):
            if name in given:
                column[place] = given[name]
        found[f"param_{name}"] = column
    found |= {f"split{fold}_test_score": column for fold, column in enumerate(scores.T)}
    above = np.nan_to_num(means, nan=-np.inf)
    ranks = 1 + (above[None, :] > above[:, None]).sum(1)
    return found | {"mean_test_score": means, "std_test_score": scores.std(1), "rank_test_score": ranks}
