"""What a study trains, and how it chooses settings: on the training silos alone.

Silos are dealt into at most four groups. The settings for a held-out silo are chosen without its whole group:

    choose_by="silo"         models are trained without this group and without another one, and scored on that
                             other one, so that settings are chosen for held-out silos
    choose_by="validation"   models are trained without this group on 80 % of each silo, scored on the rest

The settings and the round with the lowest loss (`choosing_losses`), each scored silo counting equally, are
then used to train on all silos but the held-out one, once per seed. With four silos, "silo" is nested
leave-one-silo-out; with more, groups keep the number of models that are trained for choosing the same.

What all methods share is chosen in order, so that the number of models is a sum and not a product: how
numbers are scaled, with the regression; then the network, with fedsgd, the cheapest. Networks, weight decays
and averages are a list of candidates that each differ from the first in one thing. Every method then chooses
its own rates and penalties with these; a geometric mean across silos, which fedsgd cannot speak for, also
chooses whether the network is linear. For a large table, settings are chosen on a sample of each silo's rows;
the final models are trained on all of them.

The method is chosen like its settings: the federated method with the lowest such loss, or the regression if
that loss is not clearly lower than the regression's (`chosen_method`). The scores at each held-out silo of
the method that was chosen without it are those of the whole procedure, free of hindsight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.algorithms.loss_registry import has_classes, task_of
from fedilc.algorithms.parts import AGGREGATORS
from fedilc.data.inputs import example_shape
from fedilc.data.silo import folds_of, label_per_patient
from fedilc.data.tables.table_settings import Scaling
from fedilc.errors import ConfigError, DataError, DataProblemsError, listed, nearest
from fedilc.evaluation.metrics import SCORES
from fedilc.models import NETWORKS
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.comparators import (
    ESTIMATED,
    MAX_TREES,
    POOLED,
    POOLED_TREES,
    TREE_DEPTHS,
    TREE_RATE,
    alone_regression,
    has_sklearn,
    kind_of,
    pooled_regression,
)
from fedilc.studies.study.data import StudyData, StudyTables
from fedilc.studies.study.fits import Network, build_network
from fedilc.studies.study.settings import ChooseBy, StudySettings
from fedilc.studies.study.subgroups import subgroup_levels
from fedilc.studies.study.tasks import PLAIN, AloneRegressionTask, AloneTask, RunTask, is_large

REFERENCES = ("fedavg", "fedsgd")
GROUPS, FOLDS, MIN_PER_FOLD = 4, 5, 2
VALIDATION_SHARE = 0.2
SCORED_ROUNDS = 20
NEWTON_ROUNDS = 25  # at most; Newton's method stops by itself
REGRESSIONS = {"binary": "logistic", "regression": "ridge"}  # the federated regression of a loss
TINY = 20
CHOOSING_ROWS = 5000  # of each silo of a large table


@dataclass(frozen=True)
class StudyPlan:
    """The tasks of a study of these data."""

    data: StudyData
    settings: StudySettings

    def __post_init__(self) -> None:
        names, settings = self.data.silos, self.settings
        if self.data.problems:
            raise DataProblemsError(self.data.problems)
        if len(names) < 2:
            raise DataError(
                f"a study leaves one silo out and trains on the others, and {self.data.name} has "
                f"{len(names)} silo; name the column of silos (`silo_column`), or give a file per silo"
            )
        for name in settings.hold_out:
            if name not in names:
                raise ConfigError(f"`hold_out` names {name!r}, which is no silo{nearest(name, names)}")
        for name in settings.algorithms:
            losses = find_algorithm(name)[1].losses
            if losses and self.data.loss not in losses:
                raise ConfigError(
                    f"{name} is for the loss {' or '.join(losses)}, and {self.data.name} has the loss "
                    f"{self.data.loss}; leave it out of `algorithms`"
                )
        if settings.primary is not None and settings.primary not in SCORES[task_of(self.data.loss)]:
            raise ConfigError(
                f"`primary` is {settings.primary!r}, and predictions of a quantity have no such score; "
                "leave it out"
            )
        self._check_model()
        if settings.sensitivity and not isinstance(self.data, StudyTables):
            raise ConfigError(f"`sensitivity` is for tables, and {self.data.name} holds none; leave it out")
        if not self.algorithms:
            raise ConfigError(f"no method is left: {'; '.join(self.data.refused.values())}")
        for text in settings.subgroups if self.data.pools else ():
            subgroup_levels(self.data, text)
        if settings.choose_by == "silo" and len(names) < 3:
            raise ConfigError("choosing by held-out silos needs three silos; choose by validation")

    def _check_model(self) -> None:
        """Raise if the network is unknown, or cannot be built for these data."""
        name = self.settings.model
        if name is not None and ":" not in name:
            NETWORKS.get(name)
        if name is not None:
            shape = example_shape(self.data.inputs(self.data.silos, self.data.silos[0]))
            build_network(self.network, shape, self.data.outputs, 0)

    def notes(self) -> list[str]:
        """Return sentences on what these data cannot give, or were probably not meant to have."""
        return list(dict.fromkeys([*self.data.notes, *self.own_notes()]))

    def own_notes(self) -> list[str]:
        """Return sentences on what so few sites or examples cannot give."""
        found = list(self.data.refused.values())
        labels = {name: self.data.labels[name] for name in self.data.silos}
        if len(labels) < 4:
            found.append(
                f"{len(labels)} sites are few: each model is trained on {len(labels) - 1}, and no test over "
                "so few sites can tell methods apart"
            )
        if self.choosing_rows is not None:
            steps = {
                name: options[0].get("local_steps")
                for name in self.algorithms
                if (options := self.grid(name))
            }
            found.append(
                f"settings and methods are chosen on at most {self.choosing_rows:,} rows of each site, drawn "
                "at random; the final models are trained and scored on all rows; `choosing_rows` changes it"
            )
            found += [
                f"{name} takes {count} steps per round at every site, in place of epochs"
                for name, count in steps.items()
                if count is not None
            ]
        tiny = [name for name, y in labels.items() if len(y) < TINY]
        if tiny:
            found.append(f"fewer than {TINY} examples: {listed(tiny, 5)}; scores there are mostly noise")
        alike = [name for name, y in labels.items() if len(np.unique(y)) == 1]
        said = any("one class only" in note for note in self.data.notes)
        if alike and not said and has_classes(self.data.loss):
            found.append(f"one class only: {listed(alike, 5)}; such a site has no AUROC")
        if self.settings.references and self.data.is_table and not has_sklearn():
            names = [pooled_regression(self.data.loss), POOLED_TREES, alone_regression(self.data.loss)]
            found.append(
                f"{listed(names)} need scikit-learn and are left out; run pip install 'fedilc[sklearn]' and "
                "the same command to add them"
            )
        return found

    @property
    def held_out(self) -> tuple[str, ...]:
        """Return the silos that are left out in turn."""
        return self.settings.hold_out or self.data.silos

    @property
    def choose_by(self) -> ChooseBy:
        """Return how settings are chosen."""
        few = len(self.data.silos) < GROUPS
        return self.settings.choose_by or ("validation" if few else "silo")

    @property
    def choosing_rows(self) -> int | None:
        """Return how many examples of each silo settings are chosen on at most; None is all."""
        most = self.settings.choosing_rows
        if most is None and self.data.is_table and is_large(self.data):
            most = CHOOSING_ROWS
        return most if most is not None and any(len(y) > most for y in self.data.labels.values()) else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the scores; the first one, which is declared before the study, decides."""
        names = SCORES[task_of(self.data.loss)]
        return tuple(sorted(names, key=lambda name: name != self.settings.primary))

    @property
    def regression(self) -> str | None:
        """Return the federated regression for tables with this loss; None if there is none."""
        name = REGRESSIONS.get(self.data.loss) if self.data.is_table else None
        return None if name in self.data.refused else name

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the federated methods: those asked for, and as a comparator the regression of the loss."""
        added = [self.regression] if self.settings.references and self.regression else []
        names = dict.fromkeys((*self.settings.algorithms, *added))
        return tuple(name for name in names if name not in self.data.refused)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Return the comparators by scikit-learn over the training silos; none without it, or for images."""
        if not (self._pools and self.data.is_table and has_sklearn()):
            return ()
        trees = () if self.data.backbone is not None else (POOLED_TREES,)  # slow with thousands of columns
        return (pooled_regression(self.data.loss), *trees)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that are trained over the training silos, federated or on pooled examples."""
        return (*self.algorithms, *([POOLED] if self._pools else []), *self.estimated)

    @property
    def _pools(self) -> bool:
        return self.settings.references and self.data.pools

    @property
    def network(self) -> Network:
        """Return the network that is trained."""
        settings = self.settings
        if settings.model is None or (settings.model == "mlp" and settings.hidden is not None):
            return settings.hidden
        return None if settings.model == "cnn" else settings.model

    @property
    def reference(self) -> str:
        """Return the algorithm that the others are compared with."""
        names = [name for name in self.settings.algorithms if name not in self.data.refused]
        return next((name for name in REFERENCES if name in names), names[0])

    @property
    def chooser(self) -> str:
        """Return the algorithm that chooses the network for all: plain training, or else the reference."""
        return PLAIN if PLAIN in self.algorithms else self.reference

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the silos, dealt into groups in their order."""
        names = self.data.silos
        count = min(GROUPS, len(names))
        return tuple(names[place::count] for place in range(count))

    def group_of(self, silo: str) -> int:
        """Return the number of a silo's group."""
        return next(number for number, group in enumerate(self.groups) if silo in group)

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """Return the methods in the order in which they choose: each step begins with what the last chose."""
        first = [name for name in (self.regression, self.chooser) if name in self.algorithms]
        names = list(dict.fromkeys(first))
        rest = tuple(name for name in self.methods if name not in names)
        return (*((name,) for name in names), *([rest] if rest else []))

    @cached_property
    def scalings(self) -> tuple[dict[str, Any], ...]:
        """Return how numbers may be scaled; there is one way for inputs that are ready, and none is named."""
        names = self.data.scalings(self.settings.scalings)
        return tuple({"scaling": name} for name in names) or ({},)

    @property
    def networks(self) -> tuple[dict[str, Any], ...]:
        """Return the candidates for network and training; each differs from the first in one thing."""
        settings, usual = self.settings, self.network
        others = [] if isinstance(usual, str) or usual is None else settings.networks
        first: dict[str, Any] = {
            "hidden": usual,
            "weight_decay": settings.network_decays[0],
            "average": settings.averages[0],
        }
        more: list[dict[str, Any]] = [
            *({"hidden": widths} for widths in others if widths != usual),
            *({"weight_decay": decay} for decay in settings.network_decays[1:]),
            *({"average": average} for average in settings.averages[1:]),
        ]
        return (first, *(first | one for one in more))

    def base(self, chosen: Mapping[str, Choice | None]) -> dict[str, Any]:
        """Return what methods share, as far as it is chosen: the scaling and the network."""
        found = dict(self.scalings[0]) if len(self.scalings) == 1 else {}
        for name in (self.regression, self.chooser):
            choice = chosen.get(name) if name is not None else None
            if choice is not None:
                shared = ("scaling",) if self.without_chance(str(name)) else ("scaling", *self.networks[0])
                found |= {key: choice.options[key] for key in shared if key in choice.options}
        return found

    def grid(self, method: str, base: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the settings that a method chooses from: options of `train`, "scaling" and "hidden".

        A method with a penalty has more of them than one without, as a user who tunes both would.

        Args:
            method: by name.
            base: what is chosen already (see `base`); None is nothing.
        """
        settings, known = self.settings, base or {}
        scalings = ({"scaling": known["scaling"]},) if "scaling" in known else self.scalings
        if method in ESTIMATED:
            usual = self.scalings[0]
            if method == POOLED_TREES:
                return [usual | {"max_depth": depth, "learning_rate": TREE_RATE} for depth in TREE_DEPTHS]
            return [usual | {"weight_decay": ridge} for ridge in settings.weight_decays]
        parts = find_algorithm(PLAIN if method == POOLED else method)[1]
        fixed: dict[str, Any] = dict(parts.defaults)
        if parts.is_newton:
            ridges = [fixed | {"weight_decay": ridge} for ridge in settings.weight_decays]
            return [scaling | ridge for scaling in self.scalings for ridge in ridges]
        fixed.setdefault("learning_rate", settings.learning_rates[0])
        axes: dict[str, Sequence[Any]] = {}
        if parts.local is not None and "learning_rate" in parts.defaults:
            axes["local_learning_rate"] = settings.local_learning_rates
        else:
            axes["learning_rate"] = settings.learning_rates
        if parts.penalty is not None:
            axes["penalty_weight"] = settings.penalty_weights
        if parts.intra != "whole":
            fixed["environment_size"] = settings.environment_size
        if self.choosing_rows is not None and parts.local is not None and parts.local.epochs is not None:
            # As many steps as there are in choosing, where an epoch is shorter than in the final training.
            fixed["local_steps"] = parts.local.count(self.choosing_rows)
        own = [fixed | dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        networks = self.networks
        if "hidden" in known:
            shared_by_all = {key: known[key] for key in self.networks[0]}
            networks = (shared_by_all, *self._geometric_networks(parts, shared_by_all))
        shared = [scaling | networks[0] for scaling in scalings]
        shared += [scalings[0] | network for network in networks[1:]]
        return [one | entry for one in shared for entry in own]

    def _geometric_networks(self, parts: Algorithm, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the further networks of a method with a geometric mean across silos and no penalty."""
        usual = shared["hidden"]
        if AGGREGATORS.name_of(parts.inter) != "geometric" or parts.penalty or not isinstance(usual, tuple):
            return []
        others = self.settings.geometric_networks
        return [{**shared, "hidden": widths} for widths in others if widths != usual]

    @property
    def score_every(self) -> int:
        """Return after how many rounds models are scored for choosing."""
        return max(1, self.settings.rounds // SCORED_ROUNDS)

    def choosing(
        self, method: str, group: int, base: Mapping[str, Any] | None = None
    ) -> Iterator[list[RunTask]]:
        """Yield, per entry of the grid, the runs that score it for a group's held-out silos."""
        pairs = [
            (*one, *other)
            for one, other in combinations(self.groups, 2)
            if self.groups[group] in (one, other)
        ]
        for entry in self.grid(method, base):
            options = {**entry, **self._length(method)}
            rows = self.choosing_rows
            if self.choose_by == "validation":
                share = VALIDATION_SHARE
                yield [self._run(method, options, self.groups[group], 0, validation=share, rows=rows)]
            else:
                yield [self._run(method, options, pair, 0, scored=pair, rows=rows) for pair in pairs]

    def _length(self, method: str) -> dict[str, int]:
        """Return how long a method is trained at most, and after how many rounds it is scored."""
        if method in ESTIMATED:
            return {"rounds": MAX_TREES if method == POOLED_TREES else 1}
        if self.without_chance(method):
            return {"rounds": NEWTON_ROUNDS}
        return {"rounds": self.settings.rounds, "score_every": self.score_every}

    def most_rounds(self, method: str) -> int | None:
        """Return the highest number of rounds or trees that a method may choose; None if it chooses none."""
        if self.without_chance(method) and method != POOLED_TREES:
            return None
        return self._length(method)["rounds"]

    def without_chance(self, method: str) -> bool:
        """Return whether no seed changes a method's model: regressions and trees."""
        return method in ESTIMATED or (method != POOLED and find_algorithm(method)[1].is_newton)

    def final(self, method: str, silo: str, choice: Choice) -> list[RunTask]:
        """Return the runs on all silos but one, per seed; the same run for each if no seed changes it."""
        options = {**choice.options, "rounds": choice.round}
        seeds = range(self.settings.seeds)
        drawn = [0 if self.without_chance(method) else seed for seed in seeds]
        return [self._run(method, options, (silo,), seed, predicted=silo) for seed in drawn]

    def alone_regression(self, silo: str) -> list[AloneRegressionTask]:
        """Return the folds of a site's own regression, as of its own model; none without scikit-learn."""
        name, ridges = alone_regression(self.data.loss), self.settings.weight_decays
        references = self.settings.references and self.data.is_table and has_sklearn()
        folds = self.folds(silo) if references else 0
        return [
            AloneRegressionTask(
                silo, fold, folds, ridges, 1, 1, None, (0,), self.choosing_rows, algorithm=name
            )
            for fold in range(folds)
        ]

    def alone(self, silo: str) -> list[AloneTask]:
        """Return the folds of a site's own model; none if it has too few examples of a class."""
        folds = self.folds(silo) if self.settings.references else 0
        settings, seeds = self.settings, tuple(range(self.settings.seeds))
        return [
            AloneTask(
                silo,
                fold,
                folds,
                settings.learning_rates,
                settings.rounds,
                self.score_every,
                self.network,
                seeds,
                self.choosing_rows,
            )
            for fold in range(folds)
        ]

    def folds(self, silo: str) -> int:
        """Return how many folds a site's own model is cross-validated in; 0 if it cannot be."""
        y = label_per_patient(self.data.labels[silo], self.data.patients.get(silo))
        if not has_classes(self.data.loss):
            fewest = len(y) // MIN_PER_FOLD
        else:
            counts = np.unique(y, return_counts=True)[1]
            fewest = int(counts.min()) if len(counts) > 1 else 0
        return min(FOLDS, fewest) if fewest >= 4 else 0

    def models_at(self, sites: Sequence[str], method: str) -> NDArray[np.intp] | None:
        """Return which model predicts each example of these held-out silos, by number; None if one does.

        Each silo has a model of its own, and a site alone has one per fold.
        """
        if kind_of(method) != "alone" and len(sites) == 1:
            return None
        parts, first = [], 0
        for site in sites:
            y, patients = self.data.labels[site], self.data.patients.get(site)
            folds = self.folds(site) if kind_of(method) == "alone" else 0
            part = folds_of(y, folds, self.data.loss, patients) if folds else np.zeros(len(y), np.intp)
            parts.append(part + first)
            first += max(1, folds)
        return np.concatenate(parts)

    def trained_sets(self, method: str) -> list[tuple[tuple[str, ...], Scaling]]:
        """Return the sets of silos that a method may be trained on, each with a scaling of numbers."""
        pairs = [(*one, *other) for one, other in combinations(self.groups, 2)]
        sets = [
            *(self.groups if self.choose_by == "validation" else pairs),
            *((silo,) for silo in self.held_out),
        ]
        training = [tuple(name for name in self.data.silos if name not in one) for one in sets]
        scalings = dict.fromkeys(entry.get("scaling", "moments") for entry in self.grid(method))
        return [(one, scaling) for one in dict.fromkeys(training) for scaling in scalings]

    def _run(
        self, method: str, options: Mapping[str, Any], left_out: tuple[str, ...], seed: int, **more: Any
    ) -> RunTask:
        """Return the run on all silos but those left out."""
        training = tuple(name for name in self.data.silos if name not in left_out)
        apart = {"hidden": None, "scaling": "moments", **options}
        given = {key: value for key, value in options.items() if key not in ("hidden", "scaling")}
        if given.get("average") == "none":
            del given["average"]
        return RunTask(method, given, training, apart["hidden"], seed, scaling=apart["scaling"], **more)
