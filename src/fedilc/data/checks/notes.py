"""Notes on tables before training: what is unusual, which setting they propose, one line per kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedilc.errors import listed, option

DROP, MISSING, EXCLUDE, KEEP, CATEGORICAL = "drop", "missing", "exclude_site", "keep", "categorical"
CURE = "{cure}"  # in sentences, for the setting that a note names without a proposal
_KEYS = {EXCLUDE: "exclude_sites"}  # if the key of a file is not the name of the option
_SHOWN = 5


@dataclass(frozen=True)
class Note:
    """What is unusual in one column or at one silo.

    Attributes:
        one: the sentence about it; if there is a proposal, "use ..." follows.
        many: the same on several, with {} for them: notes with the same text are one kind. "" is no kind.
        subject: the column or silo in quotes, as it is listed among many, with facts of its own in brackets.
        proposal: a setting of tables and the value that removes the cause, such as ("drop", "billing").
        unit: what `subject` is.
        cure: a setting and value that `one` names at {cure}, for those who want it; `many` names the setting.
    """

    one: str
    many: str = ""
    subject: str = ""
    proposal: tuple[str, str] | None = None
    unit: str = "columns"
    cure: tuple[str, str] | None = None


def grouped(notes: Iterable[Note]) -> list[str]:
    """Return one sentence per kind of note, in the order in which kinds first occur.

    Proposals are keys of the section [data] of an experiment; commands print them as their options.

    >>> grouped([Note(f"{name} is empty", "{} are empty", repr(name)) for name in ("a", "b")])
    ["2 columns ('a', 'b') are empty"]
    """
    kinds: dict[str, list[Note]] = {}
    for note in notes:
        kinds.setdefault(note.many or note.one, []).append(note)
    return [_sentence(kind) for kind in kinds.values()]


def details(notes: Iterable[Note]) -> list[str]:
    """Return one sentence per note."""
    return [_sentence([note]) for note in notes]


def proposals(notes: Iterable[Note]) -> tuple[tuple[str, str], ...]:
    """Return the settings that notes propose, without those for columns that are to be dropped."""
    found = list(dict.fromkeys(note.proposal for note in notes if note.proposal is not None))
    gone = {value for setting, value in found if setting == DROP}
    return tuple(
        (setting, value)
        for setting, value in found
        if not (setting == MISSING and value.rpartition("=")[0] in gone)
    )


def as_settings(settings: Iterable[tuple[str, str]]) -> str:
    """Return settings as they are written in the section [data] of an experiment.

    >>> as_settings([("drop", "billing"), ("drop", "ward"), ("missing", "-9")])
    '`drop = ["billing", "ward"]` and `missing = ["-9"]`'
    """
    by_key: dict[str, list[str]] = {}
    for setting, value in settings:
        by_key.setdefault(_KEYS.get(setting, setting), []).append(value)
    return " and ".join(option(key, values) for key, values in by_key.items())


def _sentence(notes: Sequence[Note]) -> str:
    first, asked = notes[0], proposals(notes)
    text = first.one
    if len(notes) > 1:
        named = listed([note.subject for note in notes], _SHOWN)
        text = first.many.replace("{}", f"{len(notes)} {first.unit} ({named})")
    if first.cure is not None:
        text = text.replace(CURE, as_settings([first.cure]) if len(notes) == 1 else f"`{first.cure[0]}`")
    if not asked:
        return text
    if len(asked) > _SHOWN:
        keys = sorted({f"`{_KEYS.get(setting, setting)}`" for setting, _ in asked})
        return f"{text} use {' and '.join(keys)} for each"
    return f"{text} use {as_settings(asked)}"
