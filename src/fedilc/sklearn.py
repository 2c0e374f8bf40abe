"""FedILC as scikit-learn estimators: groups are silos, so that `LeaveOneGroupOut` holds out one silo."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import LossName
from fedilc.api import train
from fedilc.data import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.errors import FedILCWarning
from fedilc.models import build_model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
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

    def _train(
        self, x: Floats, y: NDArray[Any], groups: ArrayLike | None, loss: LossName, outputs: int
    ) -> None:
        """Train one silo per group, and keep the network of the last round in float64."""
        if groups is None:
            warnings.warn(
                "fit without groups treats all examples as one silo; give groups=..., the silo of each "
                "example (inside cross_validate, a search or a pipeline: set_fit_request(groups=True), after "
                "sklearn.set_config(enable_metadata_routing=True))",
                FedILCWarning,
                stacklevel=3,
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
        result = train(
            SiloStore.of(Federation("groups", silos, loss=loss)),
            build_model("mlp", inputs.shape[1:], outputs, int(seed), hidden=list(self.hidden)),
            self.algorithm,
            rounds=self.rounds,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            penalty_weight=self.penalty_weight,
            environment_size=self.environment_size,
            seed=int(seed),
            device=self.device,
            **(self.options or {}),
        )
        self.history_ = result.history
        self.model_ = result.model.cpu().double()

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
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class ({self.classes_[0]!r}); a classifier needs at least two")
        binary = len(self.classes_) == 2
        self._train(
            x, codes, groups, "binary" if binary else "multiclass", 1 if binary else len(self.classes_)
        )
        return self

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
        x, labels = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self.label_scaler_ = StandardScaler().fit(labels[:, None])
        self._train(x, self.label_scaler_.transform(labels[:, None])[:, 0], groups, "regression", 1)
        return self

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803 - scikit-learn's name
        """Return the quantity of each example."""
        outputs = self._logits(X).numpy()
        found: Floats = self.label_scaler_.inverse_transform(outputs)[:, 0]
        return found
