"""`model-card.md`: what a model was trained on, how, and how well it did; users fill in its intended use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from fedilc.algorithms.loss_registry import LossName, task_of
from fedilc.config.options import Options, recorded_options
from fedilc.data.silo_store import Outline
from fedilc.errors import CheckpointError, printable
from fedilc.evaluation.intervals import CAUTION_MARK, NOT_ESTIMABLE, Interval, score_intervals
from fedilc.evaluation.learning_curve import Spread
from fedilc.evaluation.selection import selections
from fedilc.gradients import Loss, ModelRunner
from fedilc.storage.run_folder import UPDATES
from fedilc.storage.templating import templates
from fedilc.training.result import Result

FILE = "model-card.md"
_SIGNS = re.compile(r"[\\`*\[\]<>&|~]")
_BAR = re.compile(r"(?<!\\)\|")
_MOST_EXAMPLES = 20_000
_MOST_SILOS = 50
_AREAS = ("validation_auroc", "validation_auprc")  # None if there are few events
_WAYS = ("before", "cross_validated", "apparent")
_ALWAYS = ("rounds", "learning_rate", "weight_decay", "penalty_weight", "seed")


def model_card(facts: Mapping[str, Any], result: Result, outline: Outline) -> str:
    """Return the card of a finished run; `facts` are those of its run.json."""
    chosen = selections(result.history)
    criterion = "validation" if "validation" in chosen else "last"
    record, made = chosen[criterion], outline.preprocessing
    intervals = _intervals(facts["loss"], result, criterion, outline)
    tested = {key: _number(value) for key, value in record.items() if key.startswith("test_")}
    return _rendered(
        facts,
        record,
        made,
        criterion=criterion,
        coefficients=_coefficient_rows(facts, _model(result, criterion), made),
        labels=outline.y_test,
        patients=None if outline.test_patients is None else len(set(outline.test_patients.tolist())),
        intervals=intervals,
        tested=[(_words(key), value) for key, value in (intervals or tested).items()],
    )


def updated_card(facts: Mapping[str, Any], record: Mapping[str, Any], model: nn.Module, made: Any) -> str:
    """Return the card of a model that was recalibrated after training; `record` is that of its round."""
    updates = [_update(one) for one in facts[UPDATES]]
    return _rendered(facts, record, made, coefficients=_coefficient_rows(facts, model, made), updates=updates)


def _rendered(facts: Mapping[str, Any], record: Mapping[str, Any], made: Any, **more: Any) -> str:
    found = templates(__package__, code=as_code, codes=_codes, plain=_plain, row=_row, most_silos=_MOST_SILOS)
    return found.get_template("model-card.md.jinja").render(
        facts=facts,
        task=task_of(facts["loss"]),
        record=record,
        made=made,
        classes=made.label.classes if made is not None else facts.get("classes"),
        sites=_sites(facts, record),
        validation=_validation(record),
        settings=_settings(facts) if "algorithm" in facts else [],
        **{"updates": [], "labels": None, "intervals": {}, "tested": [], **more},
    )


def _update(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the card shows of one recalibration."""
    head, curve = curve_rows(facts)
    named = [(_plain(name), value) for name, value in coefficient_rows(facts)]
    return {
        **facts,
        "coefficients": named,
        "scores": score_rows(facts),
        "caution": caution_note(facts),
        "curve_head": head,
        "curve": curve,
    }


def coefficient_rows(update: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the coefficients that a recalibration fitted, with their intervals."""
    return [(name, _interval(one)) for name, one in update["coefficients"].items()]


def score_rows(update: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return each score of the model as it was, recalibrated and cross-validated, and apparent.

    The name of a score that is to be read with caution has a mark, which `caution_note` explains.
    """
    first, *others = (update["scores"][way] for way in _WAYS)
    return [
        (
            f"{_words(name)}{CAUTION_MARK * (one['caution'] is not None)}",
            *(_interval({**way[name], "caution": None}) for way in (first, *others)),
        )
        for name, one in first.items()
    ]


def caution_note(update: Mapping[str, Any]) -> str | None:
    """Return why scores are to be read with caution; None if none is. All are of the same rows."""
    told = {one["caution"]: None for one in update["scores"][_WAYS[0]].values() if one["caution"] is not None}
    return f"{CAUTION_MARK} Caution: {'; '.join(told)}." if told else None


def curve_rows(update: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the headings and the rows of a learning curve: two rows per number of local patients."""
    points = update["learning_curve"]
    names = list(points[0]["before"]) if points else []
    rows = [
        (str(point["patients"]), refitted, model, *(str(Spread(**point[when][name])) for name in names))
        for point in points
        for when, model, refitted in (
            ("before", "as it is", "-"),
            ("after", "recalibrated", f"{point['refitted']} of {point['draws']}"),
        )
    ]
    return ["local patients", "draws refitted", "model", *map(_words, names)], rows


def _interval(facts: Mapping[str, Any]) -> str:
    return str(Interval(**facts))


def _model(result: Result, criterion: str) -> nn.Module | None:
    """Return the model of a round; None if its weights are lost."""
    try:
        return result.best_model(criterion)
    except CheckpointError:
        return None


def _intervals(loss: LossName, result: Result, criterion: str, outline: Outline) -> Mapping[str, Interval]:
    """Return the scores of the test set; none if it is large or not here, or if the weights are lost."""
    x, y = outline.x_test, outline.y_test
    if x is None or y is None or len(x) > _MOST_EXAMPLES:
        return {}
    model = _model(result, criterion)
    if model is None:
        return {}
    runner = ModelRunner(model, Loss(loss))
    logits = runner.predict(runner.inputs(x)).double().cpu().numpy()
    return score_intervals(loss, y.cpu().numpy(), logits, outline.test_patients)


def coefficients(model: nn.Module, columns: Sequence[str], made: Any) -> dict[str, float]:
    """Return the intercept and the coefficients of a linear model with one output, in the columns' own units.

    A number enters the model as (value - mean) / scale, so its coefficient per unit is w / scale, and the
    intercept takes up w mean / scale. Without column names, or with hidden layers, the result is empty.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if len(layers) != 1 or layers[0].weight.shape != (1, len(columns)) or not columns:
        return {}
    found = dict(zip(columns, layers[0].weight[0].detach().double().tolist(), strict=True))
    intercept = 0.0 if layers[0].bias is None else float(layers[0].bias.detach().double())
    for feature in getattr(made, "features", ()):
        if hasattr(feature, "scale"):
            found[feature.name] /= feature.scale
            intercept -= found[feature.name] * feature.mean
    return {"(intercept)": intercept, **found}


def _coefficient_rows(facts: Mapping[str, Any], model: nn.Module | None, made: Any) -> list[tuple[str, ...]]:
    """Return a row per coefficient of a linear model; for two classes, with its odds ratio."""
    if model is None:
        return []
    found = coefficients(model, getattr(made, "columns", None) or facts.get("columns") or (), made)
    binary = task_of(facts["loss"]) == "binary"
    return [
        (_plain(name), f"{value:.4g}", *([f"{math.exp(min(value, 700)):.4g}"] if binary else []))
        for name, value in found.items()
    ]


def _sites(facts: Mapping[str, Any], record: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return a row per training site: its name, its numbers of examples, and their digest."""
    measured = record.get("silos") or {}
    return [
        (
            _plain(name),
            about.get("examples", "-"),
            measured.get(name, {}).get("validation_examples", "-"),
            about.get("digest") or "-",
        )
        for name, about in list((facts.get("silos") or {}).items())[:_MOST_SILOS]
    ]


def _validation(record: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """Return the names of validation scores, a row per site, and a row of means; None without scores."""
    silos = record.get("silos") or {}
    keys = [key for key in record if key.startswith("validation_")]
    if not keys:
        return None
    keys += [key for key in _AREAS if key not in keys and any(key in of for of in silos.values())]
    rows = [
        (_plain(name), *(_validated(numbers, key) for key in keys))
        for name, numbers in list(silos.items())[:_MOST_SILOS]
    ]
    rows.append(("mean over sites", *(_validated_mean(record, key) for key in keys)))
    return {"scores": list(map(_words, keys)), "rows": rows}


def _validated(numbers: Mapping[str, Any], key: str) -> str:
    value = numbers.get(key)
    return _number(value) if value is not None or key not in _AREAS else NOT_ESTIMABLE


def _validated_mean(record: Mapping[str, Any], key: str) -> str:
    """Return a mean over the sites that have the number, and how many do if not all of them."""
    silos = (record.get("silos") or {}).values()
    count = sum(numbers.get(key) is not None for numbers in silos)
    some = f" ({count} of {len(silos)} sites)" if 0 < count < len(silos) else ""
    return _validated(record, key) + some


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _words(key: str) -> str:
    return key.removeprefix("validation_").removeprefix("test_").replace("_", " ")


def _settings(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings that every card shows, and all others that differ from their defaults."""
    usual = {key: field.default for key, field in Options.model_fields.items()}
    kept = {
        key: value
        for key, value in recorded_options(facts).items()
        if key in _ALWAYS or value not in (None, {}, usual.get(key))
    }
    return [(key, _plain(value)) for key, value in {"algorithm": facts["algorithm"], **kept}.items()]


def _plain(value: object) -> str:
    """Return untrusted names as Markdown that shows them literally: no link, image or HTML."""
    return _SIGNS.sub(r"\\\g<0>", printable(str(value)))


def as_code(value: object) -> str:
    """Return untrusted names as Markdown code, between more backquotes than they contain."""
    text = printable(str(value))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _codes(values: Iterable[object]) -> str:
    return ", ".join(map(as_code, values))


def _row(cells: Iterable[object]) -> str:
    """Return a row of a table; a bar inside a cell is escaped."""
    return "| " + " | ".join(_BAR.sub(r"\\|", str(cell)) for cell in cells) + " |"
