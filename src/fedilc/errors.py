"""Errors and warnings, each one sentence that names what is wrong and says what to do.

Sentences name options between backticks, as Python and TOML write them (`resume=True`); the command line
prints them as its flags.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = {"PIL": "pillow", "prometheus_client": "prometheus-client"}


class FedILCError(Exception):
    """Base of all errors that have a message for the user; the command prints it and exits with code 2.

    >>> import fedilc
    >>> try:
    ...     fedilc.algorithms.get("fedsdg")
    ... except fedilc.FedILCError as error:
    ...     print(error)
    algorithm 'fedsdg' is unknown; did you mean 'fedsgd'?
    """


class ConfigError(FedILCError, ValueError):
    """A setting, name or option is not what was expected."""


class WrongTypeError(ConfigError, TypeError):
    """An argument has the wrong type."""


class DataError(FedILCError, ValueError):
    """A silo, a file or a test set cannot be used as it is."""


class DataProblemsError(DataError):
    """All problems of the data at once; `problems` has one sentence for each.

    `labels` are the labels of the file, if they can be read, so that they can be checked too.
    """

    def __init__(self, problems: Sequence[str], labels: Any = None) -> None:
        self.problems = list(problems)
        self.labels = labels
        shown = "; ".join(f"({number}) {problem}" for number, problem in enumerate(self.problems[:8], 1))
        more = f"; and {len(problems) - 8} more, which `fedilc check` lists" if len(problems) > 8 else ""
        one = len(problems) == 1
        super().__init__(problems[0] if one else f"there are {len(problems)} problems: {shown}{more}")


class ModelError(FedILCError, ValueError):
    """The network cannot be trained as asked; the message lists every problem and its fix."""


class NonFiniteError(FedILCError, ValueError):
    """A NaN or an infinity reached an aggregation; the message names the silo and the parameter."""


class ProtocolError(FedILCError):
    """A message is not what the protocol allows."""


class SilosLostError(FedILCError):
    """Fewer silos than `min_silos` are left to finish a round."""


class DivergedError(FedILCError):
    """A step made weights or the optimiser's state infinite; it was undone."""


class CheckpointError(FedILCError):
    """A run folder cannot be read, written or continued.

    Attributes:
        problem: what is wrong, without the advice that the message ends with.
    """

    def __init__(self, problem: str, advice: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; {advice}")


class StoppedError(Exception):
    """Ctrl-C stopped work that can be resumed; the message says how. The command exits with code 130."""


class FedILCWarning(UserWarning):
    """A note to the user that does not stop the run."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file or folder into a one-sentence error."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Raise one sentence that says what to install if a module of an optional extra is missing.

    Args:
        extra: extra of this package that installs the modules, such as "report".
        what: what needs the modules; the beginning of the sentence.
        modules: names under which the modules are imported.
    """
    missing = [_DISTRIBUTIONS.get(name, name) for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {' and '.join(missing)}, which the plain package leaves out; run "
            f"pip install 'fedilc[{extra}]'"
        )


def option(name: str, value: str | Sequence[str] | Mapping[str, Sequence[str]]) -> str:
    """Return an option as errors and notes name it: between backticks, as TOML writes it.

    The command line prints such a text with its own flags in their place.

    >>> option("drop", ["billing", "ward"])
    '`drop = ["billing", "ward"]`'
    >>> option("categories", {"ward": ["a", "b"]})
    '`categories = {"ward" = ["a", "b"]}`'
    """
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{_toml(key)} = {_toml(names)}" for key, names in value.items()) + "}"
    else:
        text = _toml(value)
    return f"`{name} = {text}`"


def _toml(value: str | Sequence[str]) -> str:
    # Here TOML is JSON, except that it wants DEL escaped; a backtick would end the option.
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", r"\u007f").replace("`", r"\u0060")


def printable(text: str) -> str:
    r"""Return untrusted text as one line without control characters, which could control a terminal.

    >>> printable("a\x1b[2Jb\n c")
    'a [2Jb c'
    """
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return which of `choices` was probably meant, as the end of an error's sentence.

    >>> nearest("fedsdg", ["fedsgd", "geometric"])
    "; did you mean 'fedsgd'?"
    >>> nearest("qqq", ["fedsgd", "geometric"])
    '; choose from fedsgd, geometric'
    """
    options = list(choices)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(options)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names separated by commas, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"], 2)
    'a, b and 3 more'
    """
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def silos_with_reasons(reasons: Mapping[str, str]) -> str:
    """Return text that names silos, each with its reason.

    >>> silos_with_reasons({"north": "its gradient is long", "south": "its gradient is longer"})
    "silo 'north' (its gradient is long) and silo 'south' (its gradient is longer)"
    """
    return " and ".join(f"silo {silo!r} ({reason})" for silo, reason in reasons.items())
