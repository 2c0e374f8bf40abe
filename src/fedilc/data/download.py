"""Where data sets are kept, how they get there, and whether they are what was published."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from fedilc.data.catalogue import Form, find_data_set
from fedilc.errors import DataError

if TYPE_CHECKING:
    from requests import RequestException

State = Literal["fine", "missing", "damaged", "there"]


class Bar(Protocol):
    """A progress bar as pooch drives it, in bytes."""

    total: int

    def update(self, size: int, /) -> None:
        """So many more."""

    def reset(self) -> None:
        """None yet."""

    def close(self) -> None:
        """All of them."""


def data_folder(given: Path | None = None) -> Path:
    """The folder of the data sets: the one given, or FEDILC_DATA, or one in the user's cache.

    >>> data_folder(Path("/scratch/data"))
    PosixPath('/scratch/data')
    """
    named = given or os.environ.get("FEDILC_DATA")
    if named:
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("fedilc"))


def check(name: str, folder: Path) -> dict[Path, State]:
    """Every file of a data set as it lies in `folder`, and what it is.

    A file is fine, missing, or damaged where its checksum is not the published one; it is only
    there where no checksum is published.
    """
    form = find_data_set(name).found(folder)
    return {folder / form.folder / file: state for file, state in _states(form, folder).items()}


def fetch(name: str, folder: Path, progress: Callable[[str], Bar] | None = None) -> list[Path]:
    """Bring a data set into `folder`, from the first mirror that has it; gives the files it brought.

    What is there and fine is left alone. A file is checked before it gets its name, so that a
    fetch that fails or is killed leaves no file that is cut or wrong.

    Args:
        name: the data set, as `fedilc data list` names it.
        folder: the data folder.
        progress: makes a progress bar for a file's name.
    """
    data = find_data_set(name)
    if set(check(name, folder).values()) <= {"fine", "there"}:
        return []
    if not data.mirrors:
        form = data.forms[0]
        raise DataError(data.steps.format(files=_listed(form.files), place=folder / form.folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            return _bring(name, folder, Path(scratch), progress)
    except OSError as error:
        raise DataError(
            f"{name} cannot be kept in {folder}: {error.strerror or error}; choose another folder with "
            "--data-dir or FEDILC_DATA"
        ) from error


def _bring(name: str, folder: Path, scratch: Path, progress: Callable[[str], Bar] | None) -> list[Path]:
    """Download what is not fine into `scratch`, and from there, checked, to its place."""
    data = find_data_set(name)
    form = data.forms[0]
    place = folder / form.folder
    wanted = {file: form.files[file] for file, state in _states(form, folder).items() if state != "fine"}
    sources = dict([data.archive]) if data.archive else wanted
    brought: list[Path] = []
    for number, (file, checksum) in enumerate(sources.items()):
        failures = _download(data.mirrors, scratch / file, checksum, progress)
        if len(failures) == len(data.mirrors):
            remaining, target = list(sources)[number:], folder if data.archive else place
            raise DataError(_by_hand(name, failures, remaining, target))
        parts = _unpacked(scratch / file, wanted) if data.archive else [scratch / file]
        brought += [_put(part, place) for part in parts]
    return brought


def _states(form: Form, folder: Path) -> dict[str, State]:
    return {file: _state(folder / form.folder / file, checksum) for file, checksum in form.files.items()}


def _state(path: Path, checksum: str | None) -> State:
    import pooch

    if not path.is_file():
        return "missing"
    if checksum is None:
        return "there"
    algorithm, _, digest = checksum.partition(":")
    try:
        return "fine" if pooch.file_hash(path, algorithm) == digest else "damaged"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _download(
    mirrors: Iterable[str], file: Path, checksum: str | None, progress: Callable[[str], Bar] | None
) -> Mapping[str, str]:
    """Download a file from the first mirror that gives the right one; why those before it did not."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    failures: dict[str, str] = {}
    for mirror in mirrors:
        downloader = pooch.HTTPDownloader(
            progressbar=progress(file.name) if progress else False,
            chunk_size=1 << 16,
            headers={"Accept-Encoding": "identity"},  # a .gz must arrive as it is
        )
        try:
            pooch.retrieve(mirror + file.name, checksum, file.name, file.parent, downloader=downloader)
            break
        except requests.RequestException as error:
            failures[mirror] = _reason(error)
        except ValueError:
            failures[mirror] = "what it gives has not the published checksum"
    return failures


def _reason(error: RequestException) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"it answers {error.response.status_code}"
    reasons = {
        requests.exceptions.SSLError: "its certificate is not trusted",
        requests.Timeout: "no answer in time",
        requests.exceptions.ChunkedEncodingError: "the connection broke off",
        requests.ConnectionError: "no connection",
    }
    return next((said for kind, said in reasons.items() if isinstance(error, kind)), type(error).__name__)


def _by_hand(name: str, failures: Mapping[str, str], files: list[str], place: Path) -> str:
    tried = "; ".join(f"{urlsplit(mirror).netloc}: {why}" for mirror, why in failures.items())
    mirror, several = next(iter(failures)), len(files) > 1
    what = f"{_listed(files)} from {mirror} and put them" if several else f"{mirror}{files[0]} and put it"
    return f"{name} could not be fetched ({tried}); download {what} into {place}"


def _unpacked(archive: Path, wanted: Mapping[str, str | None]) -> list[Path]:
    """The wanted files of an archive, beside it; their names alone count, wherever the archive has them."""
    try:
        with tarfile.open(archive) as members:
            for member in members:
                name = Path(member.name).name
                content = members.extractfile(member) if name in wanted else None
                if content is not None:
                    (archive.parent / name).write_bytes(content.read())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name} cannot be unpacked, though its checksum is right") from error
    files = [archive.parent / name for name in wanted]
    wrong = [file.name for file in files if _state(file, wanted[file.name]) != "fine"]
    if wrong:
        raise DataError(f"{archive.name} does not hold the published {_listed(wrong)}")
    return files


def _put(file: Path, folder: Path) -> Path:
    """Give a finished file its place, readable by all as other files are."""
    folder.mkdir(parents=True, exist_ok=True)
    file.chmod(0o644)
    return file.replace(folder / file.name)


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
