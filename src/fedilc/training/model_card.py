"""`model-card.md`: what a model was trained on, how, and how well it did; its use is left to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedilc.algorithms.loss_name import LossName, task_of
from fedilc.config.options import Options, recorded_options
from fedilc.data.inputs import Inputs
from fedilc.data.outline import Outline
from fedilc.errors import CheckpointError, printable
from fedilc.evaluation.intervals import NOT_ESTIMABLE, Interval, score_intervals
from fedilc.evaluation.selection import selections
from fedilc.gradients import Loss, ModelRunner
from fedilc.training.result import Result

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing

FILE = "model-card.md"
_SIGNS = re.compile(r"[\\`*\[\]<>&|~]")
_BAR = re.compile(r"(?<!\\)\|")
_MOST_EXAMPLES = 20_000
_MOST_SILOS = 50
_AREAS = ("validation_auroc", "validation_auprc")  # None if there are few events
_ALWAYS = ("rounds", "learning_rate", "weight_decay", "penalty_weight", "seed")


def model_card(facts: Mapping[str, Any], result: Result, outline: Outline) -> str:
    """Return the card of a finished run; `facts` are those of its run.json."""
    chosen = selections(result.history)
    criterion = "validation" if "validation" in chosen else "last"
    record = chosen[criterion]
    intervals = _intervals(facts["loss"], result, criterion, outline.x_test, outline.y_test)
    made = outline.preprocessing
    classes = made.label.classes if made is not None else facts.get("classes") or ()
    parts = [
        f"# Model card: {_plain(facts['federation'] if made is None else made.label.text)}, "
        f"{_plain(facts['algorithm'])}",
        "## Intended use\n\nTo fill in: who may use this model, for which decisions, and for what not.",
        _model(facts, record, criterion, classes),
        _inputs(facts, made),
        _data(facts, record, outline.y_test),
        _results(record, intervals),
        _settings(facts),
        "## Limits\n\nTo fill in: for whom it was not tested, what shift it may not survive, who watches it.",
    ]
    return "\n\n".join(parts) + "\n"


def _intervals(
    loss: LossName, result: Result, criterion: str, x: Inputs | None, y: Tensor | None
) -> Mapping[str, Interval]:
    """Return the scores of the test set; none if it is not here or large, or if the weights are gone."""
    if x is None or y is None or len(x) > _MOST_EXAMPLES:
        return {}
    try:
        model = result.best_model(criterion)
    except CheckpointError:
        return {}
    runner = ModelRunner(model, Loss(loss))
    logits = runner.predict(runner.inputs(x)).double().cpu().numpy()
    return score_intervals(loss, y.cpu().numpy(), logits)


def _model(
    facts: Mapping[str, Any], record: Mapping[str, Any], criterion: str, classes: Sequence[object]
) -> str:
    about, machine = facts["model"], (facts.get("machines") or [{}])[-1]
    chosen = {"validation": "lowest mean validation loss", "last": "the last one; no site validates"}
    lines = [
        f"- network: {as_code(about.get('name') or about.get('function') or 'one of its own')}, inputs "
        f"{about['inputs']}, outputs {about['outputs']}",
        f"- weights: round {record['round']} of {facts['rounds']} ({chosen[criterion]})",
        f"- task: {facts['loss']}"
        + (f", label {as_code(facts['label'])}" if facts.get("label") else "")
        + (f", classes {', '.join(map(as_code, classes))}" if classes else ""),
        *([f"- software: fedilc {machine['fedilc']}, torch {machine['torch']}"] if machine else []),
    ]
    return "## Model\n\n" + "\n".join(lines)


def _inputs(facts: Mapping[str, Any], made: Preprocessing | ImagePreprocessing | None) -> str:
    """Return what a row must have, and what becomes of it."""
    if made is None:
        names = ", ".join(map(as_code, facts.get("columns") or ()))
        return f"## Inputs\n\n{names or 'Arrays of numbers, as they are.'}"
    # These modules take time to load, and a run without tables does not need them.
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import NumberFeature

    if isinstance(made, ImagePreprocessing):
        return f"## Inputs\n\nPictures, resized to {made.size} x {made.size} pixels."
    rows = [
        (
            as_code(feature.name),
            f"number, mean {feature.mean:.4g}, deviation {feature.scale:.4g}"
            if isinstance(feature, NumberFeature)
            else f"one of {', '.join(map(as_code, feature.categories))}",
            "yes" if feature.indicator else "no",
        )
        for feature in made.features
    ]
    text = "## Inputs\n\n" + _table(("column", "values in training", "missing in training"), rows)
    left = [f"- {as_code(name)}: {_plain(reason)}" for name, reason in made.left_out.items()]
    return text + "\n\nNot used:\n\n" + "\n".join(left) if left else text


def _data(facts: Mapping[str, Any], record: Mapping[str, Any], y: Tensor | None) -> str:
    measured = record.get("silos") or {}
    rows = [
        (
            _plain(name),
            about.get("examples", "-"),
            measured.get(name, {}).get("validation_examples", "-"),
            about.get("digest", "-"),
        )
        for name, about in list(facts["silos"].items())[:_MOST_SILOS]
    ]
    text = "## Data\n\n" + _table(("site", "training examples", "validation examples", "digest"), rows)
    hidden = len(facts["silos"]) - _MOST_SILOS
    if hidden > 0:
        text += f"\n\n{hidden} more sites are in run.json."
    if y is None:
        return text + "\n\nThere is no test set: how the model does at another site was not measured."
    name = (facts.get("data") or {}).get("test")
    positive = f" ({int(y.sum())} of them positive)" if task_of(facts["loss"]) == "binary" else ""
    named = f" {as_code(name)}" if isinstance(name, str) else ""
    about = f"Test set{named}: {len(y)} examples{positive}, digest {facts['test']}; no site trained on it."
    return f"{text}\n\n{about}"


def _results(record: Mapping[str, Any], intervals: Mapping[str, Interval]) -> str:
    """Return the scores: validation by site, and those of the test set."""
    parts = ["## Results", f"Train loss {record['train_loss']:.4f}, the mean over sites."]
    silos = record.get("silos") or {}
    keys = [key for key in record if key.startswith("validation_")]
    if keys:
        keys += [key for key in _AREAS if key not in keys and any(key in of for of in silos.values())]
        rows = [
            (_plain(name), *(_validated(numbers, key) for key in keys))
            for name, numbers in list(silos.items())[:_MOST_SILOS]
        ]
        rows.append(("mean over sites", *(_validated_mean(record, key) for key in keys)))
        named = (key.removeprefix("validation_").replace("_", " ") for key in keys)
        parts += ["Validation examples of the training sites:", _table(("site", *named), rows)]
    tested = {key.removeprefix("test_"): _number(record[key]) for key in record if key.startswith("test_")}
    if intervals:
        tested = {name: str(interval) for name, interval in intervals.items()}
        parts.append("Test set, with 95 % intervals over its examples:")
    elif tested:
        parts.append("Test set:")
    if tested:
        parts.append(
            _table(("score", "value"), [(key.replace("_", " "), value) for key, value in tested.items()])
        )
    return "\n\n".join(parts)


def _validated(numbers: Mapping[str, Any], key: str) -> str:
    value = numbers.get(key)
    return _number(value) if value is not None or key not in _AREAS else NOT_ESTIMABLE


def _validated_mean(record: Mapping[str, Any], key: str) -> str:
    """Return a mean over the sites that have the number, and how many these are if not all have it."""
    silos = (record.get("silos") or {}).values()
    count = sum(numbers.get(key) is not None for numbers in silos)
    some = f" ({count} of {len(silos)} sites)" if 0 < count < len(silos) else ""
    return _validated(record, key) + some


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _settings(facts: Mapping[str, Any]) -> str:
    """Return the settings that every card has, and all others that differ from their defaults."""
    usual = {key: field.default for key, field in Options.model_fields.items()}
    kept = {
        key: value
        for key, value in recorded_options(facts).items()
        if key in _ALWAYS or value not in (None, {}, usual.get(key))
    }
    rows = [(key, _plain(value)) for key, value in {"algorithm": facts["algorithm"], **kept}.items()]
    return (
        "## Settings\n\n" + _table(("setting", "value"), rows) + "\n\nAll others have their default values."
    )


def _plain(value: object) -> str:
    """Return names from elsewhere as Markdown that shows them as they are: no link, picture or HTML."""
    return _SIGNS.sub(r"\\\g<0>", printable(str(value)))


def as_code(value: object) -> str:
    """Return names from elsewhere as code, between more backquotes than they have themselves."""
    text = printable(str(value))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(_BAR.sub(r"\\|", str(cell)) for cell in row) + " |" for row in lines)
