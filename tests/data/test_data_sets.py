"""The catalogue of data sets: every entry can be checked and fetched, or says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedilc.data.download import DATA_SETS, DataSet, Form, find_data_set
from fedilc.errors import ConfigError, DataError

DIGITS = {"sha256": 64, "md5": 32}


@pytest.mark.parametrize("name", DATA_SETS.names())
def test_a_data_set_can_be_fetched_or_says_how_to_get_it(name: str) -> None:
    data = find_data_set(name)
    assert data.summary
    assert bool(data.mirrors) != bool(data.steps)
    assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in data.mirrors)
    if data.mirrors:
        checksums = [*data.forms[0].files.values(), *([data.archive[1]] if data.archive else [])]
        for checksum in checksums:
            algorithm, _, digest = str(checksum).partition(":")
            assert re.fullmatch(f"[0-9a-f]{{{DIGITS[algorithm]}}}", digest)


@pytest.mark.parametrize("name", DATA_SETS.names())
def test_no_two_files_of_a_data_set_have_one_checksum(name: str) -> None:
    checksums = [checksum for checksum in DATA_SETS.get(name).forms[0].files.values() if checksum]
    assert len(set(checksums)) == len(checksums)


def test_the_form_that_is_most_complete_is_found(tmp_path: Path) -> None:
    first, second = Form("a", {"1": None, "2": None}), Form("", {"1": None, "2": None})
    data = DataSet("two files", "-", (first, second))
    assert data.found(tmp_path) is first
    (tmp_path / "1").touch()
    assert data.found(tmp_path) is second
    assert (first.share(tmp_path), second.share(tmp_path)) == (0.0, 0.5)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        Form("x" * 300, {"1": None}).share(tmp_path)


def test_an_unknown_data_set_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="data set 'cifar10' is unknown; did you mean 'cifar-10'"):
        find_data_set("cifar10")


def test_what_is_inside_the_package_needs_no_download() -> None:
    with pytest.raises(ConfigError, match="heart-disease is part of the package; it needs no download"):
        find_data_set("heart-disease")
