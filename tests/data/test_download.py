"""Fetching and checking data sets, from real servers on the loopback."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pooch
import pytest
from mirrors import mirror, nobody, sha256
from real_data import real_data

from fedilc.data.download import DATA_SETS, DataSet, Form, check, data_folder, fetch
from fedilc.errors import ConfigError, DataError

FILES = {"a.bin": bytes(range(256)) * 2000, "b.gz": gzip.compress(b"packed " * 5000, mtime=0)}
CHECKSUMS = {name: sha256(content) for name, content in FILES.items()}
WHOLE = {f"toy/{name}": content for name, content in FILES.items()}

Toy = Callable[..., None]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """Registers a data set of two files, called toy, with the mirrors given."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def register(*mirrors: str, archive: tuple[str, str] | None = None) -> None:
        forms = (Form("toy", CHECKSUMS), Form("", CHECKSUMS), Form("", {"whole.bin": None}))
        DATA_SETS.unregister("toy")
        DATA_SETS.register("toy", DataSet("a toy", "1 MB", forms, mirrors, archive))

    yield register
    DATA_SETS.unregister("toy")


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, those of a broken-off fetch too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def archive_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_fetch_brings_every_file_to_its_place_and_leaves_nothing_else(tmp_path: Path, toy: Toy) -> None:
    folder = tmp_path / "not" / "yet"
    with mirror(FILES) as first:
        toy(first.address)
        brought = fetch("toy", folder)
    assert brought == [folder / name for name in WHOLE]
    assert contents(folder) == WHOLE
    assert [path.name for path in folder.iterdir()] == ["toy"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in brought} == {0o644}


def test_a_whole_data_set_is_not_fetched_again(tmp_path: Path, toy: Toy) -> None:
    with mirror(FILES) as first:
        toy(first.address)
        fetch("toy", tmp_path)
        first.asked.clear()
        assert fetch("toy", tmp_path) == []
        assert first.asked == []


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"cut")], ids=["gone", "cut"])
def test_only_what_is_missing_or_damaged_is_fetched(
    tmp_path: Path, toy: Toy, spoil: Callable[[Path], object]
) -> None:
    with mirror(FILES) as first:
        toy(first.address)
        fetch("toy", tmp_path)
        spoil(tmp_path / "toy" / "b.gz")
        first.asked.clear()
        assert fetch("toy", tmp_path) == [tmp_path / "toy" / "b.gz"]
        assert first.asked == ["b.gz"]
    assert contents(tmp_path) == WHOLE


WRONG = {name: content[::-1] for name, content in FILES.items()}


@pytest.mark.parametrize(
    ("files", "manner"),
    [({}, "whole"), (WRONG, "whole"), (FILES, "cut"), (FILES, "cut without a length")],
    ids=["not found", "wrong checksum", "cut", "cut without a length"],
)
def test_where_a_mirror_fails_the_next_one_is_asked(tmp_path: Path, toy: Toy, files, manner) -> None:
    with mirror(files, manner) as first, mirror(FILES) as second:
        toy(nobody(), first.address, second.address)
        fetch("toy", tmp_path)
        assert first.asked == second.asked == list(FILES)
    assert contents(tmp_path) == WHOLE


@pytest.mark.parametrize(
    ("files", "manner", "why"),
    [
        ({}, "whole", "it answered 404"),
        (WRONG, "whole", "its file does not have the published checksum"),
        (FILES, "cut", "the connection was lost"),
        (FILES, "cut without a length", "its file does not have the published checksum"),
    ],
    ids=["not found", "wrong checksum", "cut", "cut without a length"],
)
def test_where_every_mirror_fails_the_sentence_says_why_and_nothing_is_left_or_lost(
    tmp_path: Path, toy: Toy, files, manner, why: str
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").write_bytes(b"damaged before")
    with mirror(files, manner) as first:
        toy(first.address)
        with pytest.raises(DataError, match=rf"toy could not be fetched \(127.0.0.1:\d+: {why}\); download "):
            fetch("toy", tmp_path)
    assert contents(tmp_path) == {"toy/a.bin": b"damaged before"}
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_without_a_network_one_sentence_says_which_files_are_needed_from_where_and_where_to_put_them(
    tmp_path: Path, toy: Toy
) -> None:
    first, second = nobody(), nobody()
    toy(first, second)
    hosts = [address.removeprefix("http://").removesuffix("/") for address in (first, second)]
    with pytest.raises(DataError) as refusal:
        fetch("toy", tmp_path)
    assert str(refusal.value) == (
        f"toy could not be fetched ({hosts[0]}: no connection; {hosts[1]}: no connection); "
        f"download a.bin, b.gz from {first} and put them into {tmp_path / 'toy'}"
    )
    assert list(tmp_path.iterdir()) == []


def test_where_only_one_file_is_needed_the_sentence_has_its_whole_address(tmp_path: Path, toy: Toy) -> None:
    with mirror({"a.bin": FILES["a.bin"]}) as first:
        toy(first.address)
        with pytest.raises(DataError) as refusal:
            fetch("toy", tmp_path)
    assert str(refusal.value).endswith(f"; download {first.address}b.gz and put it into {tmp_path / 'toy'}")
    assert contents(tmp_path) == {"toy/a.bin": FILES["a.bin"]}


def test_the_files_that_the_sentence_asked_for_are_taken_once_they_are_there(
    tmp_path: Path, toy: Toy
) -> None:
    toy(nobody())
    (tmp_path / "toy").mkdir()
    for name, content in FILES.items():
        (tmp_path / "toy" / name).write_bytes(content)
    assert fetch("toy", tmp_path) == []


class Recorder:
    """A progress bar that keeps what it was told, or gives up at the first byte."""

    def __init__(self, gives_up: bool = False) -> None:
        self.total = 0
        self.done = 0
        self.closed = False
        self.gives_up = gives_up

    def update(self, size: int) -> None:
        if self.gives_up:
            raise KeyboardInterrupt
        self.done += size

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.closed = True


def test_a_bar_for_each_file_is_told_its_size_and_driven_to_its_end(tmp_path: Path, toy: Toy) -> None:
    bars: dict[str, Recorder] = {}
    with mirror(FILES) as first:
        toy(first.address)
        fetch("toy", tmp_path, lambda name: bars.setdefault(name, Recorder()))
    told = {name: (bar.total, bar.done, bar.closed) for name, bar in bars.items()}
    assert told == {name: (len(content), len(content), True) for name, content in FILES.items()}


def test_a_fetch_that_is_interrupted_leaves_nothing(tmp_path: Path, toy: Toy) -> None:
    with mirror(FILES) as first:
        toy(first.address)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy", tmp_path, lambda _: Recorder(gives_up=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["toy-1.0/{}", "../../{}", "/{}"], ids=["folder", "above", "root"])
def test_an_archive_gives_its_files_to_their_place_whatever_folders_it_names(
    tmp_path: Path, toy: Toy, place: str
) -> None:
    packed = archive_of({place.format(name): content for name, content in FILES.items()} | {"more": b"more"})
    with mirror({"toy.tar.gz": packed}) as first:
        toy(first.address, archive=("toy.tar.gz", sha256(packed)))
        brought = fetch("toy", tmp_path / "data")
        assert first.asked == ["toy.tar.gz"]
    assert brought == [tmp_path / "data" / name for name in WHOLE]
    assert contents(tmp_path) == {f"data/{name}": content for name, content in WHOLE.items()}


def test_a_file_that_is_fine_is_left_when_the_archive_brings_the_others(tmp_path: Path, toy: Toy) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").write_bytes(FILES["a.bin"])
    os.utime(tmp_path / "toy" / "a.bin", (1, 1))
    packed = archive_of(FILES)
    with mirror({"toy.tar.gz": packed}) as first:
        toy(first.address, archive=("toy.tar.gz", sha256(packed)))
        assert fetch("toy", tmp_path) == [tmp_path / "toy" / "b.gz"]
    assert (tmp_path / "toy" / "a.bin").stat().st_mtime == 1


@pytest.mark.parametrize(
    ("packed", "sentence"),
    [
        (archive_of(FILES | {"b.gz": b"other"}), "toy.tar.gz does not hold the published b.gz"),
        (archive_of({}), "toy.tar.gz does not hold the published a.bin, b.gz"),
        (archive_of(FILES)[:-600], "toy.tar.gz cannot be unpacked"),
        (b"no archive", "toy.tar.gz cannot be unpacked"),
    ],
    ids=["other file", "empty", "cut", "no archive"],
)
def test_an_archive_that_does_not_hold_the_published_files_leaves_nothing(
    tmp_path: Path, toy: Toy, packed: bytes, sentence: str
) -> None:
    with mirror({"toy.tar.gz": packed}) as first:
        toy(first.address, archive=("toy.tar.gz", sha256(packed)))
        with pytest.raises(DataError, match=f"^{re.escape(sentence)}"):
            fetch("toy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_an_archive_is_to_be_put_where_it_is_read(tmp_path: Path, toy: Toy) -> None:
    address = nobody()
    toy(address, archive=("toy.tar.gz", sha256(b"")))
    with pytest.raises(DataError, match=f"; download {address}toy.tar.gz and put it into {tmp_path}$"):
        fetch("toy", tmp_path)


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300], ids=["file", "below a file", "long"])
def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path, toy: Toy, name: str) -> None:
    (tmp_path / "file").write_text("")
    with mirror(FILES) as first:
        toy(first.address)
        with pytest.raises(DataError, match=rf"{name} ?.*: (File exists|Not a directory|File name too long)"):
            fetch("toy", tmp_path / name)
    assert contents(tmp_path) == {"file": b""}


def test_check_says_of_each_file_what_it_is(tmp_path: Path, toy: Toy) -> None:
    toy()
    place = tmp_path / "toy"
    assert check("toy", tmp_path) == {place / "a.bin": "missing", place / "b.gz": "missing"}
    place.mkdir()
    (place / "a.bin").write_bytes(FILES["a.bin"])
    assert check("toy", tmp_path) == {place / "a.bin": "fine", place / "b.gz": "missing"}
    (place / "b.gz").write_bytes(FILES["b.gz"][:-1])
    assert check("toy", tmp_path) == {place / "a.bin": "fine", place / "b.gz": "damaged"}


def test_check_looks_at_the_form_that_is_most_complete(tmp_path: Path, toy: Toy) -> None:
    toy()
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").write_bytes(FILES["a.bin"])
    (tmp_path / "whole.bin").write_bytes(b"any")
    assert check("toy", tmp_path) == {tmp_path / "whole.bin": "unchecked"}
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert check("toy", tmp_path) == {tmp_path / name: "fine" for name in FILES}


@pytest.mark.parametrize("ask", [check, fetch])
def test_a_data_set_that_is_unknown_is_one_sentence(tmp_path: Path, ask: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match="data set 'minst' is unknown; did you mean 'mnist'"):
        ask("minst", tmp_path)


def test_the_full_eicu_is_not_fetched_but_its_steps_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refusal:
        fetch("eicu", tmp_path / "data")
    said = str(refusal.value)
    place = tmp_path / "data" / "eicu"
    assert said.startswith(
        "eicu cannot be fetched, because its publisher gives it to credentialed users only"
    )
    assert said.endswith(f"medication.csv.gz, hospital.csv.gz from there into {place}")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_given_wins_over_the_environment_and_that_over_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDILC_DATA", "~/digits")
    assert data_folder(Path("here")) == Path("here")
    assert data_folder() == Path.home() / "digits"
    monkeypatch.setenv("FEDILC_DATA", "")
    assert data_folder() == Path(pooch.os_cache("fedilc"))
    monkeypatch.delenv("FEDILC_DATA")
    assert data_folder() == Path(pooch.os_cache("fedilc"))


LENGTHS = {"md5": 32, "sha256": 64}


@pytest.mark.parametrize("name", DATA_SETS.names())
def test_every_data_set_can_be_fetched_and_checked_or_says_how_to_get_it(name: str) -> None:
    data = DATA_SETS.get(name)
    known = [each for form in data.forms for each in form.files.values() if each is not None]
    known += [data.archive[1]] if data.archive else []
    for algorithm, _, digest in (checksum.partition(":") for checksum in known):
        assert re.fullmatch(f"[0-9a-f]{{{LENGTHS[algorithm]}}}", digest)
    assert all(re.fullmatch(r"https?://.+/", address) for address in data.mirrors)
    assert None not in data.forms[0].files.values() if data.mirrors else data.steps


@pytest.mark.parametrize("name", ["mnist", "cifar-10", "eicu-demo"])
def test_the_real_files_have_the_published_checksums(name: str) -> None:
    assert set(check(name, real_data(name)).values()) == {"fine"}


def test_the_unpacked_digits_have_the_checksums_of_the_raw_form(tmp_path: Path) -> None:
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for path in check("mnist", real_data("mnist")):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (tmp_path / "MNIST" / "raw" / path.name.removesuffix(".gz")).write_bytes(content)
    states = check("mnist", tmp_path)
    assert len(states) == 4
    assert set(states.values()) == {"fine"}
