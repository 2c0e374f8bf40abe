"""The parts of the reference that are made from the package when the site is built.

A comment `<!-- generated: NAME -->` in a page is replaced by what the function NAME of this file returns.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx

import fedilc
from fedilc.algorithms.loss_registry import LOSSES
from fedilc.algorithms.metric_registry import METRICS
from fedilc.algorithms.parts import OPTIMIZERS, REGISTRIES, TORCH_OPTIMIZERS, LocalSteps
from fedilc.algorithms.registry import Registry
from fedilc.cli.app import app as commands_of_fedilc
from fedilc.config.experiment import SOURCES, Experiment, Network
from fedilc.config.options import Options, SiloOptions
from fedilc.data.tables.table_settings import TableSettings
from fedilc.models.registry import NETWORKS
from fedilc.studies.study.settings import StudySettings

PACKAGE = Path(fedilc.__file__).parent
DOCS = Path(__file__).parents[1]
TORCH = [name.lower() for name in TORCH_OPTIMIZERS]
_MARK = re.compile(r"<!-- generated: (\w+) -->")
Row = tuple[str, str, str, str]


def described(kind: Any) -> dict[str, str]:
    """Return what a class's docstring says of its arguments or attributes."""
    found = described(kind.__base__) if inspect.isclass(kind) and kind.__base__ is not object else {}
    text = inspect.cleandoc(getattr(kind, "__doc__", None) or "")
    name = ""
    for line in text.splitlines():
        if (start := re.match(r" {4}(\w+): (.*)", line)) is not None:
            name = start[1]
            found[name] = start[2]
        elif line.startswith("     ") and name:
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


def spelled(annotation: Any) -> str:
    """Return a type as an experiment's file would name it: without modules and bounds."""
    text = inspect.formatannotation(annotation)
    text = re.sub(r"(?:[A-Za-z_]\w*\.)+", "", text)
    while "Annotated[" in text:
        start = text.index("Annotated[") + len("Annotated[")
        ends = list(_ends(text, start))
        text = text[: start - len("Annotated[")] + text[start : ends[0]] + text[ends[-1] + 1 :]
    text = re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace(", ", " | "), text)
    text = re.sub(r"^Optional\[(.*)\]$", r"\1 | none", text)
    text = re.sub(r"^Union\[(.*)\]$", lambda found: found[1].replace(", ", " | "), text)
    return re.sub(r"\bstr\b", "text", text).replace("None", "none").replace("'", '"')


def _ends(text: str, start: int) -> Iterator[int]:
    """Yield the first comma at the level of a bracket that is open at `start`, and its end."""
    depth, comma = 0, False
    for place in range(start, len(text)):
        depth += (text[place] in "[({") - (text[place] in "])}")
        if text[place] == "," and depth == 0 and not comma:
            comma = True
            yield place
        if depth < 0:
            if not comma:
                yield place
            yield place
            return


def bounds(field: FieldInfo) -> str:
    """Return the bounds of a number, such as ">= 1"."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    )


def rows(fields: Mapping[str, FieldInfo], texts: Mapping[str, str]) -> list[Row]:
    """Return name, type, default and description of each field."""
    found = []
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "required" if default is PydanticUndefined else _value(default)
        kind = spelled(field.annotation)
        limits = bounds(field)
        found.append(
            (name, f"{kind}, {limits}" if limits else kind, shown, field.description or texts.get(name, ""))
        )
    return found


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return type(value).__name__
    return f"`{value!r}`".replace("'", '"')


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = list(head)
    body = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    body += [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]
    return "\n".join(body)


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part[:1] == "`" else plain(part) for part in parts) or "-"


def plain(text: str) -> str:
    """Return text in which nothing is markup."""
    return re.sub(r"([*_$<\[\]])", r"\\\1", text)


def settings_table(fields: Mapping[str, FieldInfo], kind: Any) -> str:
    """Return the table of the settings of a class."""
    lines = (
        (f"`{name}`", f"`{form}`", value, text) for name, form, value, text in rows(fields, described(kind))
    )
    return table(("setting", "type", "default", "meaning"), lines)


def run_settings() -> str:
    """Return the settings at the top of an experiment."""
    own = {key: field for key, field in Experiment.model_fields.items() if key not in Options.model_fields}
    return settings_table(own | Options.model_fields, Options)


def silo_settings() -> str:
    """Return the names of the settings that silos receive."""
    return ", ".join(f"`{name}`" for name in SiloOptions.model_fields)


def local_settings() -> str:
    """Return the settings of local steps, by their names in an experiment."""
    texts = described(LocalSteps)
    fields = LocalSteps.model_fields
    lines = (
        (
            f"`{flat}`",
            f"`{name}`",
            f"`{spelled(fields[name].annotation)}`",
            _value(fields[name].default),
            texts[name],
        )
        for flat, name in LocalSteps.FLAT.items()
    )
    return table(("setting", "in `LocalSteps`", "type", "default", "meaning"), lines)


def part_settings() -> str:
    """Return the options of every part of this package that has some."""
    lines = []
    for registry in REGISTRIES:
        for name in registry.names():
            texts = described(registry.get(name))
            if registry.is_built_in(name) and name not in TORCH:
                for option, kind, default, text in rows(registry.fields(name), texts):
                    lines.append((f"`{name}`", registry.kind, f"`{option}`", f"`{kind}`", default, text))
    return table(("part", "kind", "setting", "type", "default", "meaning"), lines)


def torch_optimizers() -> str:
    """Return the options of torch's optimisers with their defaults."""
    lines = [
        (
            f"`{name}`",
            ", ".join(f"`{key} = {field.default!r}`" for key, field in OPTIMIZERS.fields(name).items()),
        )
        for name in OPTIMIZERS.names()
        if name in TORCH
    ]
    return table(("optimiser", "options and defaults"), lines)


def model_settings() -> str:
    """Return the settings of the section [model]."""
    return settings_table(Network.model_fields, Network)


def study_settings() -> str:
    """Return the settings of the section [study]."""
    texts = described(StudySettings)
    hints = inspect.get_annotations(StudySettings)
    lines = []
    for name, field in StudySettings.__dataclass_fields__.items():
        if name in texts:
            kind = spelled(_resolved(StudySettings, hints[name]))
            lines.append((f"`{name}`", f"`{kind}`", _value(field.default), texts[name]))
    return table(("setting", "type", "default", "meaning"), lines)


def _resolved(kind: Any, hint: Any) -> Any:
    return eval(hint, vars(inspect.getmodule(kind))) if isinstance(hint, str) else hint


def data_settings() -> str:
    """Return a section for every source of silos, with its settings."""
    parts = []
    for name in SOURCES.names():
        kind = SOURCES.get(name)
        fields = dict(SOURCES.fields(name))
        shared = issubclass(kind, TableSettings)
        if shared:
            fields = {key: field for key, field in fields.items() if key not in TableSettings.model_fields}
        text = inspect.getdoc(kind) or ""
        more = "It also has the [settings of tables](#settings-of-tables).\n" if shared else ""
        body = (
            settings_table(fields, kind)
            if fields
            else "It has no settings besides these.\n"
            if shared
            else "It has no settings."
        )
        parts.append(f'### `source = "{name}"`\n\n{plain(text.splitlines()[0])}\n\n{more}\n{body}\n')
    return "\n".join(parts)


def table_settings() -> str:
    """Return the settings that every source of tables has."""
    return settings_table(TableSettings.model_fields, TableSettings)


def named_parts() -> str:
    """Return everything that an experiment can name, by kind."""
    kinds: tuple[Registry[Any], ...] = (*REGISTRIES, LOSSES, METRICS, SOURCES, NETWORKS)
    lines = [
        (registry.kind, f"`{name}`", registry.summary(name))
        for registry in kinds
        for name in registry.names()
    ]
    algorithms = [
        ("algorithm", f"`{name}`", fedilc.algorithms.get(name).summary) for name in fedilc.algorithms.names()
    ]
    return table(("kind", "name", "what it is"), [*algorithms, *lines])


def commands() -> str:
    """Return a section for every command, with its arguments and options."""
    return "\n\n".join(_command(("fedilc",), typer.main.get_command(commands_of_fedilc)))


def _command(words: tuple[str, ...], command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _command((*words, name), one)
        return
    context = command.make_context(words[-1], [], resilient_parsing=True)
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    yield f"## `{' '.join(words)}`\n\n{_prose(command.help or '')}\n\n```text\n{usage}\n```"
    shown = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    if shown:
        records = [one.get_help_record(context) for one in shown]
        yield table(("argument or option", "meaning"), ((f"`{names}`", text) for names, text in records))


def _prose(text: str) -> str:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(_cell(paragraph).replace("\\|", "|") for paragraph in paragraphs)


def error_sentences() -> str:
    """Return every sentence with which the package refuses something, by class and by module."""
    found: dict[str, dict[str, list[str]]] = {}
    documented = set(re.findall(r"`(\w+Error)`", (DOCS / "reference" / "errors.md").read_text()))
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                name = getattr(node.exc.func, "id", "")
                text = " ".join("; ".join(filter(None, map(_template, node.exc.args))).split())
                if name in documented and len(text.replace("…", "").split()) > 2:
                    module = file.relative_to(PACKAGE).as_posix()
                    found.setdefault(name, {}).setdefault(module, []).append(text)
    parts = []
    for name in sorted(found):
        parts.append(f"### Sentences of `{name}`\n")
        for module, texts in found[name].items():
            parts.append(f"- `{module}`")
            parts += [f"  - {plain(text).replace('`', '')}" for text in dict.fromkeys(texts)]
        parts.append("")
    return "\n".join(parts)


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return "…" if isinstance(node, ast.FormattedValue) else ""


GENERATED: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        *(
            run_settings,
            silo_settings,
            local_settings,
            part_settings,
            torch_optimizers,
            model_settings,
            study_settings,
        ),
        *(data_settings, table_settings, named_parts, commands, error_sentences),
    )
}


def generate(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the comments of a page by what they name."""
    source[0] = _MARK.sub(lambda found: GENERATED[found[1]](), source[0])


_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?![`_])")
_BAR = re.compile(r"(``[^`]*``)|\|(?=\S)|(?<=\S)\|")


def docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Write a docstring's `code` and |absolute values| as reStructuredText wants them."""
    for place, line in enumerate(lines):
        if ">>>" not in line:
            lines[place] = _BAR.sub(lambda bar: bar[1] or r"\|", _CODE.sub(r"``\1``", line))


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill pages before they are read, before links are looked at."""
    app.connect("source-read", generate, priority=400)
    app.connect("autodoc-process-docstring", docstring)
    return {"parallel_read_safe": True}
