"""Every public name says what it takes, what it returns and what it refuses, and has an example."""

from __future__ import annotations

import inspect
import re

import pytest

import fedilc

NAMES = [name for name in fedilc.__all__ if name != "__version__"]


def parameters(public: object) -> list[str]:
    """Return what a caller may give; an error takes a message, as every exception does."""
    if not callable(public) or (inspect.isclass(public) and issubclass(public, Exception)):
        return []
    return [name for name in inspect.signature(public).parameters if name != "self"]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name: str) -> None:
    assert re.search(r"^>>> ", inspect.getdoc(getattr(fedilc, name)) or "", re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in NAMES if parameters(getattr(fedilc, name))])
def test_arguments_results_and_errors_are_explained(name: str) -> None:
    public = getattr(fedilc, name)
    text = inspect.getdoc(public) or ""
    assert re.search("^(Args|Attributes):$", text, re.MULTILINE)
    explained = {
        word.strip()
        for line in re.findall(r"^    ([\w, ]+): ", text, re.MULTILINE)
        for word in line.split(",")
    }
    assert set(parameters(public)) <= explained
    assert re.search(r"^Raises:\n    \w+Error: ", text, re.MULTILINE)
    assert inspect.isclass(public) or re.search(r"^Returns:\n    \w", text, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in NAMES if parameters(getattr(fedilc, name))])
def test_no_argument_is_explained_that_is_not_there(name: str) -> None:
    text = inspect.getdoc(getattr(fedilc, name)) or ""
    block = re.search(r"^Args:\n((?:    .*\n)+)", text, re.MULTILINE)
    named = re.findall(r"^    (\w+): ", block[1], re.MULTILINE) if block else []
    assert set(named) <= set(parameters(getattr(fedilc, name)))
