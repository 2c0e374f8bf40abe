"""The data of a study, and where they come from: tables, a data set, an experiment, or folders of images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import LossName
from fedilc.config import read_study_file
from fedilc.config.experiment import SOURCES, shipped_experiments
from fedilc.data import Federation
from fedilc.data.backbones import BackboneFacts
from fedilc.data.checks.notes import details, proposals
from fedilc.data.digests import digest
from fedilc.data.image_folder import ImagePreprocessing, read_image_folder
from fedilc.data.inputs import require_one_input
from fedilc.data.sources import Source, validated
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import SiloTables, read_tables
from fedilc.data.tables.table_settings import Scaling, TableSettings
from fedilc.errors import ConfigError, DataError, listed, nearest

_KEPT_ROWS = 100_000  # of inputs: a hundred sets of training silos of a small study
_TABLES = {".csv", ".tsv", ".xlsx", ".parquet", ".dta", ".sav"}


@dataclass(frozen=True)
class StudyData(ABC):
    """Silos whose inputs are preprocessed by what the training silos hold, and by nothing else.

    Attributes:
        name: of the data.
        loss: "binary", "multiclass" or "regression".
        outputs: the number of outputs of a model.
        labels: by silo, one label per example.
        notes: sentences on what is probably not meant, one per kind.
        details: the same, one per column or silo.
        proposals: settings of tables that notes propose, each with its value.
        problems: sentences on what makes a study of these data meaningless.
        leaks: the columns that alone predict the label almost perfectly.
        strongest: the columns that predict the label best, each alone, with their mean AUROC.
        settings: those of the study that the file of the data gives, by name.
        patients: by silo, whose each example is, by number; only silos at which a patient has several.
        backbone: the frozen network whose features of pictures are the inputs, if they are.
        refused: by federated method, why silos do not take part in it.
        trainer: what does tasks together if the silos are elsewhere (see `tasks.perform_all`).
    """

    name: str
    loss: LossName
    outputs: int
    labels: Mapping[str, NDArray[Any]]
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    details: tuple[str, ...] = field(default=(), kw_only=True)
    proposals: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    problems: tuple[str, ...] = field(default=(), kw_only=True)
    leaks: tuple[str, ...] = field(default=(), kw_only=True)
    strongest: tuple[tuple[str, float], ...] = field(default=(), kw_only=True)
    settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    patients: Mapping[str, NDArray[np.intp]] = field(default_factory=dict, kw_only=True)
    backbone: BackboneFacts | None = field(default=None, kw_only=True)
    refused: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    trainer: Callable[[Sequence[Any], Callable[[float], None]], list[Any]] | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )
    pools: ClassVar[bool] = True  # whether examples of several silos may be in one place

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return tuple(self.labels)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return about how many bytes the silos' features have."""

    def scalings(self, _offered: Sequence[Scaling]) -> tuple[Scaling, ...]:
        """Return which scalings of numbers may be chosen; none for inputs that are ready."""
        return ()

    def patients_of(self, silos: Sequence[str]) -> NDArray[np.intp] | None:
        """Return whose each example of some silos is, by number; None if no patient there has several."""
        if not any(silo in self.patients for silo in silos):
            return None
        parts: list[NDArray[np.intp]] = []
        for silo in silos:
            own = self.patients.get(silo, np.arange(len(self.labels[silo])))
            parts.append(own + (parts[-1].max() + 1 if parts else 0))
        return np.concatenate(parts)

    @property
    @abstractmethod
    def is_table(self) -> bool:
        """Return whether an input is a row of numbers, and no image."""

    @cached_property
    def label_digests(self) -> Mapping[str, str]:
        """Return, by silo, a digest of its labels."""
        return {silo: digest(torch.as_tensor(y)) for silo, y in self.labels.items()}

    @property
    @abstractmethod
    def fingerprints(self) -> Mapping[str, str]:
        """Return, by silo, a digest of its features and of how they are read, without its labels."""

    @abstractmethod
    def inputs(
        self,
        training: Sequence[str],
        silo: str,
        scaling: Scaling = "moments",
        rows: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Return the inputs of a silo, or of some of its rows, preprocessed by what training silos hold."""

    @abstractmethod
    def inputs_by_rows(self, silo: str, rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs, preprocessed by what these rows of its own hold."""


@dataclass(frozen=True)
class StudyTables(StudyData):
    """Tables as `read_tables` reads them; inputs for the last training silos are kept.

    Of large tables, those of one set of training silos are kept.

    `indicators` is whether inputs have indicators of missing values.
    """

    tables: SiloTables
    indicators: bool = True
    _kept: dict[Hashable, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    is_table = True

    @classmethod
    def of(cls, name: str, tables: SiloTables) -> StudyTables:
        """Return the data of tables."""
        labels = {silo: table.y for silo, table in tables.silos.items()}
        rule = tables.label
        return cls(
            name,
            rule.loss,
            rule.outputs,
            labels,
            tables,
            notes=tuple(tables.notes),
            details=tuple(details(tables.findings)),
            proposals=proposals(tables.findings),
            problems=tuple(details(tables.copies)),
            leaks=tables.leaks,
            strongest=tables.strongest,
            patients={
                silo: table.patients for silo, table in tables.silos.items() if table.patients is not None
            },
        )

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the tables have."""
        return sum(int(table.frame.estimated_size()) for table in self.tables.silos.values())

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Return, by silo, a digest of its table and of how it is read."""
        texts = {silo: table.frame.write_csv() for silo, table in self.tables.silos.items()}
        how = f"{self.tables.settings!r}{'' if self.indicators else ' without indicators'}"
        wholes = {silo: f"{how}\n{text}" for silo, text in texts.items()}
        for silo, numbers in self.patients.items():
            wholes[silo] += f"\n{digest(torch.from_numpy(numbers))}"
        return {silo: hashlib.sha256(whole.encode()).hexdigest()[:16] for silo, whole in wholes.items()}

    def inputs(
        self,
        training: Sequence[str],
        silo: str,
        scaling: Scaling = "moments",
        rows: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Return the inputs of a silo, or of some of its rows, preprocessed by what training silos hold."""
        if rows is not None:  # few: all rows would take several times as much memory
            fitted = self._prepared(self.tables.fit(training, scaling))
            return fitted.transform(self.tables.silos[silo].frame.filter(rows))
        key = (scaling, *training)
        if key not in self._kept:
            frames = {name: table.frame for name, table in self.tables.silos.items()}
            self._make_room(sum(map(len, frames.values())))
            fitted = self._prepared(self.tables.fit(training, scaling))
            self._kept[key] = {name: fitted.transform(frame) for name, frame in frames.items()}
        return self._kept[key][silo]

    def inputs_by_rows(self, silo: str, rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs, preprocessed by what these rows of its own hold."""
        key = (silo, rows.tobytes())
        if key not in self._kept:
            table = self.tables.silos[silo]
            self._make_room(len(table.frame))
            part = replace(table, frame=table.frame[rows], y=table.y[rows], labels=table.labels[rows])
            fitted = replace(self.tables, silos={silo: part}).fit([silo])
            self._kept[key] = {silo: self._prepared(fitted).transform(table.frame)}
        return self._kept[key][silo]

    def _make_room(self, rows: int) -> None:
        """Drop the inputs that are kept if those of further rows would be too many."""
        if rows + sum(len(x) for kept in self._kept.values() for x in kept.values()) > _KEPT_ROWS:
            self._kept.clear()

    def scalings(self, offered: Sequence[Scaling]) -> tuple[Scaling, ...]:
        """Return which scalings may be chosen: those offered, or the one that the tables' settings name."""
        return different_scalings(self.tables.settings, list(self.tables.silos), self.tables.fit, offered)

    @property
    def has_indicators(self) -> bool:
        """Return whether an input says that a value is missing."""
        fitted = self._prepared(self.tables.fit(list(self.tables.silos)))
        return any(feature.indicator for feature in fitted.features)

    def without_indicators(self) -> StudyTables:
        """Return the same data without indicators of missing values among the inputs."""
        return replace(self, indicators=False, _kept={})

    def _prepared(self, fitted: Preprocessing) -> Preprocessing:
        """Return the preprocessing with or without indicators of missing values."""
        if self.indicators:
            return fitted
        features = tuple(one.model_copy(update={"indicator": False}) for one in fitted.features)
        return fitted.model_copy(update={"features": features})


def different_scalings(
    settings: TableSettings,
    silos: Sequence[str],
    fit: Callable[[Sequence[str], Scaling], Preprocessing],
    offered: Sequence[Scaling],
) -> tuple[Scaling, ...]:
    """Return which scalings may be chosen: those offered, or the one that the tables' settings name.

    Without a column that they scale in different ways, it is the first.
    """
    if settings.scaling != "moments":
        return (settings.scaling,)
    made = {name: fit(silos, name).features for name in offered}
    return tuple(name for place, name in enumerate(offered) if made[name] not in [*made.values()][:place])


@dataclass(frozen=True)
class StudyArrays(StudyData):
    """Arrays that are inputs already: images, NPZ files, a `Federation`; nothing is fitted to them."""

    x: Mapping[str, Tensor]

    @classmethod
    def of(cls, federation: Federation) -> StudyArrays:
        """Return the silos of a federation, each with its validation examples; its test set is left out."""
        labels, x = {}, {}
        for silo in federation.silos:
            parts = [require_one_input(one, "a study") for one in (silo.x, silo.x_val) if one is not None]
            x[silo.name] = (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
            labels[silo.name] = (silo.y if silo.y_val is None else torch.cat([silo.y, silo.y_val])).numpy()
        facts = getattr(federation.preprocessing, "backbone", None)
        notes = tuple(_backbone_notes(federation.preprocessing))
        name, loss, outputs = federation.name, federation.loss, federation.outputs
        return cls(name, loss, outputs, labels, x, notes=notes, backbone=facts)

    @property
    def is_table(self) -> bool:
        """Return whether an input is a row of numbers, and no image."""
        return next(iter(self.x.values())).dim() == 2

    @property
    def nbytes(self) -> int:
        """Return how many bytes the arrays have."""
        return sum(x.nbytes for x in self.x.values())

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Return, by silo, a digest of its inputs."""
        return {silo: digest(x) for silo, x in self.x.items()}

    def inputs(
        self,
        _training: Sequence[str],
        silo: str,
        _scaling: Scaling = "moments",
        rows: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Return the inputs of a silo, or of some of its rows, as they are."""
        return self.x[silo] if rows is None else self.x[silo][torch.from_numpy(rows)]

    def inputs_by_rows(self, silo: str, _rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs as they are."""
        return self.x[silo]


def study_data(
    sources: Sequence[str],
    *,
    label: str | None = None,
    silo_column: str | None = None,
    image_size: int | None = None,
    backbone: str | None = None,
    exclude_site: Sequence[str] = (),
    prepared: bool = False,
    **settings: Any,
) -> StudyData:
    """Return the data of a study.

    Args:
        sources: tables (one with a column of silos, or one file per silo), or one data set's name, one
            experiment, or one folder of images by domain and class.
        label: the label's column or comparison, for tables.
        silo_column: the column that names silos, for one table.
        image_size: pixels per side, for a folder of images; None is 32, or the backbone's own.
        backbone: a frozen network by name or `module:function` whose features of pictures are the inputs.
        exclude_site: names of silos that are ignored, for tables.
        prepared: whether tables of an experiment are prepared although it takes their numbers as they are.
        settings: further `TableSettings`, for tables.
    """
    paths = [Path(source) for source in sources]
    if backbone is not None and not (len(paths) == 1 and paths[0].is_dir()):
        raise ConfigError(
            f"`backbone` is for a folder of images by domain and class, and {sources[0]} is none; leave it "
            "out, or give it as `backbone` in the section [data] of an experiment of images"
        )
    if len(paths) == 1 and (not paths[0].exists() or paths[0].suffix == ".toml"):
        own = {key: value for key, value in (("label", label), ("silo_column", silo_column)) if value}
        return _named(sources[0], exclude_site, settings | own, prepared)
    if len(paths) == 1 and paths[0].is_dir():
        images = _images(paths[0], image_size, backbone)
        _refuse_table_options(sources[0], exclude_site, settings)
        return images
    for path in paths:
        if not path.is_file():
            wrong = "is a folder" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {wrong}; give tables (.csv, .xlsx, .parquet, .dta, .sav, ...)")
    if label is None:
        raise ConfigError("`label` is missing; name the column to predict, or a comparison such as 'num>0'")
    if len(paths) == 1 and silo_column is None:
        raise ConfigError(
            f"{paths[0]} is one table; name the column of silos with `silo_column`, or give a file per silo"
        )
    chosen = TableSettings(label=label, **settings)
    name = paths[0].name.partition(".")[0] if len(paths) == 1 else paths[0].resolve().parent.name
    return StudyTables.of(name, read_tables(paths, chosen, silo_column, exclude_site))


def _images(folder: Path, size: int | None, backbone: str | None) -> StudyData:
    try:
        images = read_image_folder(folder, size, backbone)
    except DataError as error:
        tables = sorted(path for path in folder.iterdir() if path.suffix in _TABLES)
        if not tables:
            raise
        names = listed([path.name for path in tables])
        raise DataError(
            f"{folder} is a folder of tables ({names}), not of pictures; name the tables themselves, such as "
            f"{tables[0]}"
        ) from error
    rule = images.preprocessing.label
    labels = {site: y for site, (_, y) in images.arrays.items()}
    x = {site: x for site, (x, _) in images.arrays.items()}
    return StudyArrays(
        folder.resolve().name,
        rule.loss,
        rule.outputs,
        labels,
        x,
        notes=(*images.notes, *_backbone_notes(images.preprocessing)),
        backbone=images.preprocessing.backbone,
    )


def _backbone_notes(made: object) -> list[str]:
    """Return a sentence on what a pretrained network may have seen."""
    facts = made.backbone if isinstance(made, ImagePreprocessing) else None
    if facts is None:
        return []
    return [
        f"inputs are {facts.features} features of the backbone {facts.name} (digest {facts.digest[:16]}); "
        "its pretraining may have seen pictures like those of a held-out site, so scores there may be better "
        "than at a site that is new to it"
    ]


def _named(name: str, exclude: Sequence[str], changed: Mapping[str, Any], prepared: bool) -> StudyData:
    """Return a data set by its source's name, or the data of an experiment or of its TOML file."""
    known = SOURCES.names()
    if name in known and not any(field.is_required() for field in SOURCES.fields(name).values()):
        return _of_source(
            name, validated(SOURCES.get(name), {"source": name}, "data"), Path(), exclude, changed
        )
    shipped = shipped_experiments()
    if name in shipped or Path(name).exists():
        own, source, folder, settings = read_study_file(name)
        return replace(_of_source(own, source, folder, exclude, changed, prepared), settings=settings)
    if "." in name or "/" in name:
        raise DataError(f"{name} does not exist; give a table, or the name of a data set")
    raise ConfigError(f"{name!r} is neither a file nor a data set{nearest(name, [*known, *shipped])}")


def _of_source(
    name: str,
    source: Source,
    folder: Path,
    exclude: Sequence[str],
    changed: Mapping[str, Any],
    prepared: bool = False,
) -> StudyData:
    for key in ("label", "silo_column"):
        if key in changed:
            raise ConfigError(f"`{key}` cannot be given for {name}, which has its own")
    read = getattr(source, "tables", None)
    if read is not None and (prepared or getattr(source, "scale", True)):
        tables = read(folder)
        return StudyTables.of(
            name, tables.with_settings(exclude, **changed) if exclude or changed else tables
        )
    _refuse_table_options(name, exclude, changed)
    return StudyArrays.of(source.build(0, folder))


def _refuse_table_options(name: str, exclude: Sequence[str], changed: Mapping[str, Any]) -> None:
    """Raise if options of tables are given for data that are none."""
    given = [*changed, *(["exclude_site"] if exclude else [])]
    if given:
        raise ConfigError(f"`{given[0]}` is for tables, and {name} holds none; leave it out")
