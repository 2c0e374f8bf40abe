"""Download data sets into the data folder, and check their files."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from fedilc.algorithms.registry import Registry
from fedilc.errors import ConfigError, DataError, require_extra

if TYPE_CHECKING:
    from requests import RequestException

EMBEDDED = ("color-digits", "heart-disease")  # inside the package
DATA_SETS: Registry[DataSet] = Registry("data set")
State = Literal["fine", "missing", "damaged", "unchecked"]
Progress = Callable[[str], Any]  # a progress bar for a file's name, as pooch uses it


@dataclass(frozen=True)
class Form:
    """One layout of a data set in the data folder: a folder below it, and the files in that.

    `files` maps each file to its checksum, `algorithm:digest`, or to None if none is published.
    """

    folder: str
    files: Mapping[str, str | None]

    def share(self, folder: Path) -> float:
        """Return the share of its files that exist below `folder`, from 0 to 1."""
        try:
            existing = sum((folder / self.folder / name).is_file() for name in self.files)
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error
        return existing / len(self.files)


@dataclass(frozen=True)
class DataSet:
    """A data set: what it is, the forms it is read in, and the addresses it is fetched from.

    `fedilc data fetch` creates the first form, from its files at one of the `mirrors`, or from an `archive`
    there (name and checksum) that holds them. Without mirrors, `steps` says what the user has to do.
    """

    summary: str
    size: str
    forms: tuple[Form, ...]
    mirrors: tuple[str, ...] = ()
    archive: tuple[str, str] | None = None
    steps: str = ""

    def found(self, folder: Path) -> Form:
        """Return the form that is most complete below `folder`; the first one if there are no files."""
        return max(self.forms, key=lambda form: form.share(folder))


def find_data_set(name: str) -> DataSet:
    """Return a data set by its name.

    >>> find_data_set("color-digits")
    Traceback (most recent call last):
    fedilc.errors.ConfigError: color-digits is part of the package; it needs no download
    """
    if name in EMBEDDED:
        raise ConfigError(f"{name} is part of the package; it needs no download")
    return DATA_SETS.get(name)


def data_folder(given: Path | None = None) -> Path:
    """Return the folder of the data sets: `given`, or FEDILC_DATA, or one in the user's cache.

    >>> data_folder(Path("/scratch/data"))
    PosixPath('/scratch/data')
    """
    named = given or os.environ.get("FEDILC_DATA")
    return Path(named).expanduser() if named else cache_folder()


def cache_folder() -> Path:
    """Return this package's folder in the user's cache, where the operating system has its caches."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedilc"
    if sys.platform == "win32":
        return Path(
            os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "fedilc", "fedilc", "Cache"
        )
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedilc"


def check(name: str, folder: Path) -> dict[Path, State]:
    """Return the state of every file of a data set in `folder`.

    A file is fine, missing, or damaged (its checksum is not the published one); it is unchecked if no
    checksum is published.
    """
    form = find_data_set(name).found(folder)
    return {folder / form.folder / file: state for file, state in _states(form, folder).items()}


def fetch(name: str, folder: Path, progress: Progress | None = None) -> list[Path]:
    """Download a data set into `folder` from the first mirror that has it, and return the new files.

    Files that are fine are kept. A file gets its name only after its check, so that a download that fails or
    is killed leaves no incomplete or wrong file.

    Args:
        name: the data set, as `fedilc data list` names it.
        folder: the data folder.
        progress: returns pooch's progress bar for a file's name.
    """
    data = find_data_set(name)
    if set(check(name, folder).values()) <= {"fine", "unchecked"}:
        return []
    if not data.mirrors:
        form = data.forms[0]
        raise DataError(data.steps.format(files=", ".join(form.files), place=folder / form.folder))
    require_extra("benchmarks", f"the download of {name}", "pooch", "requests")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            return _fetch_missing(name, folder, Path(scratch), progress)
    except OSError as error:
        raise DataError(
            f"{name} cannot be stored in {folder}: {error.strerror or error}; choose another folder with "
            "`data_dir` or FEDILC_DATA"
        ) from error


def _fetch_missing(name: str, folder: Path, scratch: Path, progress: Progress | None) -> list[Path]:
    """Download the files that are not fine into `scratch`, check them, and move them to their folder."""
    data = find_data_set(name)
    form = data.forms[0]
    target = folder / form.folder
    wanted = {file: form.files[file] for file, state in _states(form, folder).items() if state != "fine"}
    sources = dict([data.archive]) if data.archive else wanted
    fetched: list[Path] = []
    for number, (file, checksum) in enumerate(sources.items()):
        failures = _download(data.mirrors, scratch / file, checksum, progress)
        if len(failures) == len(data.mirrors):
            remaining = list(sources)[number:]
            raise DataError(_manual_steps(name, failures, remaining, folder if data.archive else target))
        parts = _unpack(scratch / file, wanted) if data.archive else [scratch / file]
        fetched += [_move(part, target) for part in parts]
    return fetched


def _states(form: Form, folder: Path) -> dict[str, State]:
    return {file: _state(folder / form.folder / file, checksum) for file, checksum in form.files.items()}


def _state(path: Path, checksum: str | None) -> State:
    if not path.is_file():
        return "missing"
    if checksum is None:
        return "unchecked"
    algorithm, _, digest = checksum.partition(":")
    try:
        with path.open("rb") as file:
            return "fine" if hashlib.file_digest(file, algorithm).hexdigest() == digest else "damaged"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _download(
    mirrors: Iterable[str], file: Path, checksum: str | None, progress: Progress | None
) -> Mapping[str, str]:
    """Download a file from the first mirror that has the right one; return why each earlier mirror failed."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    failures: dict[str, str] = {}
    for mirror in mirrors:
        downloader = pooch.HTTPDownloader(
            progressbar=progress(file.name) if progress else False,
            chunk_size=1 << 16,
            headers={"Accept-Encoding": "identity"},  # a .gz file must not be unpacked on the way
        )
        try:
            pooch.retrieve(mirror + file.name, checksum, file.name, file.parent, downloader=downloader)
            break
        except requests.RequestException as error:
            failures[mirror] = _reason(error)
        except ValueError:
            failures[mirror] = "its file does not have the published checksum"
    return failures


def _reason(error: RequestException) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"it answered {error.response.status_code}"
    reasons = {
        requests.exceptions.SSLError: "its certificate is not trusted",
        requests.Timeout: "no answer in time",
        requests.exceptions.ChunkedEncodingError: "the connection was lost",
        requests.ConnectionError: "no connection",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), type(error).__name__)


def _manual_steps(name: str, failures: Mapping[str, str], files: list[str], place: Path) -> str:
    tried = "; ".join(f"{urlsplit(mirror).netloc}: {why}" for mirror, why in failures.items())
    mirror, several = next(iter(failures)), len(files) > 1
    what = f"{', '.join(files)} from {mirror} and put them" if several else f"{mirror}{files[0]} and put it"
    return f"{name} could not be fetched ({tried}); download {what} into {place}"


def _unpack(archive: Path, wanted: Mapping[str, str | None]) -> list[Path]:
    """Unpack the wanted files of an archive, from any of its folders, beside it, and return them."""
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
        raise DataError(f"{archive.name} does not hold the published {', '.join(wrong)}")
    return files


def _move(file: Path, folder: Path) -> Path:
    """Move a checked file into its folder, readable by everybody (temporary files are not)."""
    folder.mkdir(parents=True, exist_ok=True)
    file.chmod(0o644)
    return file.replace(folder / file.name)
