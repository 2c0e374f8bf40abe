"""`fedilc data` as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import Refusal, fedilc
from mirrors import mirror, nobody, sha256

from fedilc.data.download import DATA_SETS, DataSet, Form

FILES = {"a.bin": b"some bytes" * 1000, "b.bin": b"other bytes" * 1000}
CHECKSUMS = {name: sha256(content) for name, content in FILES.items()}


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A data folder of its own for each test, and the environment again as it was."""
    monkeypatch.setenv("FEDILC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def toy() -> Iterator[Callable[..., None]]:
    def register(*mirrors: str) -> None:
        data = DataSet("a toy", "20 kB", (Form("toy", CHECKSUMS),), mirrors)
        DATA_SETS.unregister("toy")
        DATA_SETS.register("toy", data)

    yield register
    DATA_SETS.unregister("toy")


def rows(printed: str) -> dict[str, str]:
    """The first line of each row of the list, by the data set's name."""
    return {line.split()[0]: line for line in printed.splitlines() if line.strip()}


def test_list_shows_every_data_set_and_whether_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "mnist").mkdir(parents=True)
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"")
    printed = fedilc("data", "list")
    found = rows(printed)
    assert set(DATA_SETS.names()) <= set(found)
    assert found["mnist"].rstrip().endswith("1 of 4 files, in mnist/")
    assert found["cifar-10"].rstrip().endswith("yes, in ./")
    assert found["eicu-demo"].split()[-1] == "no"
    assert f"folder: {folder}\n" in printed
    assert "or says how to get it (eicu)" in printed
    assert "part of the package, no download needed: color-digits, heart-disease" in printed


def test_list_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    table, _, _ = fedilc("data", "list").partition("folder: ")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", table)
    assert max(map(len, plain.splitlines())) <= 80
    assert set(DATA_SETS.names()) <= set(rows(plain))


def test_fetch_says_what_it_brought_and_the_second_time_that_it_is_there(
    tmp_path: Path, toy: Callable[..., None]
) -> None:
    place = tmp_path / "data" / "toy"
    with mirror(FILES) as first:
        toy(first.address)
        assert fedilc("data", "fetch", "toy") == f"fetched {place / 'a.bin'}\nfetched {place / 'b.bin'}\n"
        assert fedilc("data", "fetch", "toy") == f"toy is already present: {place}\n"
        assert first.asked == ["a.bin", "b.bin"]
    assert fedilc("data", "check", "toy") == f"{place / 'a.bin'}: fine\n{place / 'b.bin'}: fine\n"


def test_in_a_terminal_fetch_shows_a_bar_for_each_file(
    monkeypatch: pytest.MonkeyPatch, toy: Callable[..., None]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    wrong = {name: content[::-1] for name, content in FILES.items()}
    with mirror(wrong) as first, mirror(FILES) as second:
        toy(first.address, second.address)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", fedilc("data", "fetch", "toy"))
    assert re.search(r"a\.bin .*10\.0/10\.0 kB", plain)
    assert re.search(r"b\.bin .*11\.0/11\.0 kB", plain)
    assert "fetched " in plain


def test_check_says_file_by_file_what_is_wrong_and_refuses(
    tmp_path: Path, toy: Callable[..., None], refusal: Refusal
) -> None:
    toy("http://127.0.0.1/")
    place = tmp_path / "data" / "toy"
    place.mkdir(parents=True)
    (place / "a.bin").write_bytes(FILES["a.bin"][:-1])
    said = refusal("data", "check", "toy")
    assert refusal.printed == f"{place / 'a.bin'}: damaged\n{place / 'b.bin'}: missing\n"
    assert said == "toy is not complete (1 damaged and 1 missing of 2); run `fedilc data fetch toy`"


def test_check_says_where_no_checksum_is_published(tmp_path: Path) -> None:
    place = tmp_path / "data" / "eicu"
    place.mkdir(parents=True)
    for table in ("patient", "medication", "hospital"):
        (place / f"{table}.csv").write_text("")
    printed = fedilc("data", "check", "eicu").splitlines()
    assert printed[0] == f"{place / 'patient.csv'}: present, but no checksum is published"


def test_the_folder_of_the_option_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"folder: {tmp_path / 'mine'}\n" in fedilc("data", "list", "--data-dir", "mine")


def test_a_fetch_without_a_network_is_one_sentence(
    tmp_path: Path, toy: Callable[..., None], refusal: Refusal
) -> None:
    toy(nobody())
    said = refusal("data", "fetch", "toy", "--data-dir", tmp_path / "new")
    assert said.startswith("toy could not be fetched (127.0.0.1:")
    assert said.endswith(f"and put them into {tmp_path / 'new' / 'toy'}")


def test_the_real_command_without_a_network_leaves_stderr_to_its_one_sentence(tmp_path: Path) -> None:
    environment = os.environ | {name: nobody() for name in ("HTTP_PROXY", "HTTPS_PROXY")} | {"NO_PROXY": ""}
    environment |= {name.lower(): environment[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")}
    command = [sys.executable, "-m", "fedilc", "data", "fetch", "cifar-10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("fedilc: cifar-10 could not be fetched (www.cs.toronto.edu: ")
    address = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert done.stderr.endswith(f"; download {address} and put it into {tmp_path / 'data'}\n")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "what", "help_of"),
    [
        (["data", "fetch"], "missing argument", "fedilc data fetch"),
        (["data", "check", "mnist", "more"], "more", "fedilc data check"),
        (["data", "list", "--nope"], "--nope", "fedilc data list"),
        (["data", "list", "--data-dir"], "'--data-dir'", "fedilc data list"),
        (["data", "fetsh"], "'fetsh'", "fedilc data"),
    ],
)
def test_a_subcommand_that_cannot_be_parsed_points_to_its_own_help(
    refusal: Refusal, arguments: list[str], what: str, help_of: str
) -> None:
    said = refusal(*arguments)
    assert what in said.lower()
    assert said.endswith(f"({help_of} --help explains)")


@pytest.mark.parametrize(("experiment", "name"), [("color-mnist", "mnist"), ("rotated-cifar10", "cifar-10")])
def test_an_experiment_without_its_data_says_how_to_get_it(
    tmp_path: Path, refusal: Refusal, experiment: str, name: str
) -> None:
    said = refusal("run", experiment, "--rounds", 1, "--out", tmp_path / "run")
    assert said.startswith(
        f"{name} is not in {tmp_path / 'data'}; `fedilc data fetch {name}` downloads it, or "
    )
    assert not (tmp_path / "run").exists()


def test_the_commands_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys\n"
        "from fedilc.cli import main\n"
        "sys.argv = ['fedilc', 'data', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded.isdisjoint({"torch", "numpy", "polars", "matplotlib", "pooch", "requests"})
