"""Functions of the user's own are found by `module:function`, and their errors are one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedilc.algorithms.user_code import call_user_code, code_digest, find_function
from fedilc.errors import ConfigError, DataError


@pytest.fixture
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_functions.py").write_text("LIMIT = 3\ndef double(x):\n    return 2 * x\n")
    (tmp_path / "broken_functions.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("_own_module")
def test_a_function_is_found_in_the_working_folder() -> None:
    assert call_user_code(find_function("own_functions:double", "provider"), "double", 4) == 8


@pytest.mark.usefixtures("_own_module")
def test_the_digest_of_a_module_changes_with_its_source_and_needs_one() -> None:
    source = Path("own_digested.py")
    source.write_text("def double(x):\n    return 2 * x\n")
    before = code_digest("own_digested:double")
    assert before == code_digest("own_digested:double")
    source.write_text("def double(x):\n    return x + x  # in another way\n")
    assert code_digest("own_digested:double") != before
    with pytest.raises(ConfigError, match="in a module without source"):
        code_digest("math:sqrt")


@pytest.mark.usefixtures("_own_module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_functions", "is not of the form module:function"),
        ("own_functions:triple", "has no function 'triple'"),
        ("own_functions:LIMIT", "has no function 'LIMIT'"),
        ("broken_functions:double", r"cannot be imported: ModuleNotFoundError: .*no_such_package"),
        ("no_such_module:double", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_found_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_function(name, "provider")


@pytest.mark.usefixtures("_own_module")
def test_an_error_is_one_sentence_with_file_and_line() -> None:
    double = find_function("own_functions:double", "provider")
    with pytest.raises(ConfigError, match=r"double failed: TypeError: .* \(own_functions\.py, line 3\)"):
        call_user_code(double, "double", None)


def test_an_error_of_fedilc_is_passed_on() -> None:
    def refuses() -> None:
        raise DataError("no patients")

    with pytest.raises(DataError, match=r"^no patients$"):
        call_user_code(refuses, "refuses")
