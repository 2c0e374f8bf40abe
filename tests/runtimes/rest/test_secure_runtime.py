"""Silos and coordinators of a run with secure sums that are killed in each phase or removed for good."""

from __future__ import annotations

import base64
import secrets as secrets_of_python
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fleets import outcome_of
from ports import free_port

import fedilc.privacy.secure_sums
import fedilc.runtimes.rest.secure_runtime
from fedilc import Silo
from fedilc.errors import FedILCWarning
from fedilc.federation.client import SiloClient
from fedilc.privacy.identities import make_roster, new_identity
from fedilc.privacy.words import COUNTS, VALUES
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.coordinator import QueueUpdates, RestRuntime, listening, make_app
from fedilc.runtimes.rest.http_client import HttpClient
from fedilc.runtimes.rest.participant import Participant, SiloLimits
from fedilc.runtimes.rest.secure_runtime import OpenPhase, SecureRuntime
from fedilc.runtimes.rest.secure_silo import SecureMember, SecureSilo
from fedilc.runtimes.rest.task_queue import Spool, TaskQueue
from rest import remote

pytestmark = pytest.mark.slow

SILOS = ("a", "b", "c", "d", "e")
PHASES = ("offer", "share", "mask", "sign", "unmask")
SUMS = [
    ("matched-update", COUNTS),
    pytest.param("statistics", VALUES, marks=pytest.mark.long),
    pytest.param("matched-update", VALUES, marks=pytest.mark.long),
]
Moment = tuple[int | str, ...]  # round and step; with secure sums also sum and phase


class KilledError(BaseException):
    """The end of a silo or of a coordinator, as sudden as that of a process."""


def examples(name: str, _manifest: object = None) -> Silo:
    draw = torch.Generator().manual_seed(ord(name))
    x = torch.randn(40, 3, generator=draw)
    y = (x.sum(1) + torch.randn(40, generator=draw) > 0).long()
    return Silo(name, x[:30], y[:30], x[30:], y[30:])


@pytest.fixture(autouse=True)
def doomed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Moment]:
    """When silos are killed, by name: as they are asked for a phase, or for a step of a plain run."""
    found: dict[str, Moment] = {}

    def deadly(answer: Callable[[Any, Any], Any], name_of: Callable[[Any], str]) -> Callable[[Any, Any], Any]:
        def answered(self: Any, asked: Any) -> Any:
            about = getattr(asked, "secure", None)
            request = asked if about is None else asked.request
            moment = (request.round, request.step)
            moment += () if about is None else (about.get("part"), about.get("phase"))
            if found.get(name_of(self)) == moment:
                del found[name_of(self)]
                raise KilledError
            return answer(self, asked)

        return answered

    monkeypatch.setattr(SecureSilo, "answer", deadly(SecureSilo.answer, lambda own: own.client.silo.name))
    monkeypatch.setattr(SiloClient, "answer", deadly(SiloClient.answer, lambda own: own.silo.name))
    return found


class Company:
    """A coordinator in this thread, and its silos in others."""

    def __init__(self, folder: Path, secure: bool = True, timeout: float = 60, **options: Any) -> None:
        self.folder, self.secure, self.timeout, self.port = folder, secure, timeout, free_port()
        self.identities = {name: new_identity(folder / f"{name}.key") for name in SILOS}
        self.roster = make_roster(f"{name}={one.public}" for name, one in self.identities.items())
        usual = {"rounds": 3, "algorithm": "fishr-inter-geo"}
        sums: dict[str, Any] = {"secure": True} if secure else {"sum_unit": "2^-40", "min_side": 3}
        self.settings = remote(SILOS, **(usual | sums | options))
        self.removed, self.dead, self.said = set[str](), threading.Event(), list[str]()
        self.threads: list[threading.Thread] = []

    def start(self, name: str, returns: bool = True) -> None:
        """Let a silo join; one that is killed comes back as a new process would, unless it stays away."""

        def take_part() -> None:
            member = SecureMember(self.identities[name], self.roster) if self.secure else None
            http = HttpClient(f"http://127.0.0.1:{self.port}", None)
            limits = SiloLimits(state=self.folder / f"state-{name}")
            silo = Participant(
                http, name, lambda _: examples(name), device="cpu", limits=limits, secure=member
            )
            silo.log = lambda sentence, _kind="event", /: self.said.append(f"{name}: {sentence}")
            try:
                silo.take_part()
            except KilledError:
                self.dead.set()
                if returns:
                    self.start(name)
            except Exception as error:
                self.said.append(f"{name} ended: {error!r}")

        self.threads.append(threading.Thread(target=take_part, daemon=True))
        self.threads[-1].start()

    def admits(self, silo: str) -> bool:
        """Whether a silo's token is valid."""
        return silo not in self.removed

    def run(self, out: Path, meanwhile: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Train, and return the records of all rounds."""
        run = RemoteRun.of(self.settings, Path(), roster=self.roster.digest if self.secure else None)
        queue = TaskQueue(run.manifest, spool=Spool(out))
        runtime: RestRuntime = RestRuntime(queue, run.needed, self.timeout)
        if self.secure:
            runtime = SecureRuntime(queue, run.needed, self.timeout, self.roster, self.admits)
        address = Address("127.0.0.1", self.port, insecure=True)
        watching = threading.Thread(target=meanwhile, daemon=True)
        out.mkdir(exist_ok=True)
        with listening(make_app(queue, None), address):
            watching.start()
            updates = QueueUpdates(queue, lambda: None)
            found = run.train(run.training(runtime), "rest", out, [updates])
            queue.finish("complete")
            deadline = time.monotonic() + 15
            for thread in self.threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        assert not [sentence for sentence in self.said if " ended: " in sentence]
        return found.history


def weights_of(out: Path) -> dict[str, bytes]:
    tensors = outcome_of(out)[1]
    return {n: t.numpy().tobytes() for n, t in tensors.items() if n.startswith(("weights.", "optimizer."))}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of the run without secure sums, over all silos."""
    folder = tmp_path_factory.mktemp("plain")
    company = Company(folder, secure=False)
    for name in SILOS:
        company.start(name)
    company.run(folder / "run")
    return weights_of(folder / "run")


@pytest.mark.parametrize(("step", "part"), SUMS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_silo_killed_in_any_phase_comes_back_and_the_bits_are_those_of_a_plain_run(
    phase: str, step: str, part: str, tmp_path: Path, plain: dict[str, bytes], doomed: dict[str, Moment]
) -> None:
    company, doomed["c"] = Company(tmp_path), (2, step, part, phase)
    for name in SILOS:
        company.start(name)
    history = company.run(tmp_path / "run")
    assert company.dead.is_set(), company.said
    assert [record["members"] for record in history] == [5, 5, 5]
    assert weights_of(tmp_path / "run") == plain


@pytest.mark.parametrize("phase", ["offer", "share", "mask"])
def test_a_silo_lost_before_the_list_is_signed_is_left_out_as_in_a_plain_run(
    phase: str, tmp_path: Path, doomed: dict[str, Moment]
) -> None:
    found = []
    for secure in (False, True):
        folder = tmp_path / f"secure-{secure}"
        folder.mkdir()
        company = Company(folder, secure, timeout=1.5, min_silos=4)
        doomed["c"] = (2, "statistics", VALUES, phase) if secure else (2, "statistics")
        for name in SILOS:
            company.start(name, returns=False)
        history = company.run(folder / "run")
        assert company.dead.is_set(), company.said
        if secure:
            assert [record["members"] for record in history] == [5, 4, 4]
        found.append(weights_of(folder / "run"))
    assert found[0] == found[1]


@pytest.mark.parametrize(("step", "part"), SUMS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_killed_in_any_phase_goes_on_with_the_same_bits(
    phase: str,
    step: str,
    part: str,
    tmp_path: Path,
    plain: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = []

    class Deadly(OpenPhase):
        """Kills the coordinator when it opens a phase for the first time."""

        def __init__(self, request: Any, manifest: Any, message: Any, *more: Any) -> None:
            moment = (request.round, request.step, message["part"], message["phase"])
            if not killed and moment == (2, step, part, phase):
                killed.append(moment)
                raise KilledError
            super().__init__(request, manifest, message, *more)

    monkeypatch.setattr(fedilc.runtimes.rest.secure_runtime, "OpenPhase", Deadly)
    company = Company(tmp_path)
    for name in SILOS:
        company.start(name)
    with pytest.raises(KilledError):
        company.run(tmp_path / "run")
    history = company.run(tmp_path / "run")
    assert killed
    assert [record["members"] for record in history] == [5, 5, 5]
    assert weights_of(tmp_path / "run") == plain


def test_a_silo_removed_for_good_after_the_statistics_costs_the_round_its_penalty(
    tmp_path: Path, doomed: dict[str, Moment]
) -> None:
    company, doomed["c"] = Company(tmp_path, timeout=1.5, min_silos=4), (2, "matched-update", COUNTS, "mask")
    for name in SILOS:
        company.start(name, returns=False)

    def remove() -> None:
        company.dead.wait(60)
        company.removed.add("c")

    history = company.run(tmp_path / "run", remove)
    assert [record["members"] for record in history] == [5, 4, 4]
    assert ["penalty" in record for record in history] == [True, False, True]
    assert "its token was revoked" in history[1]["without_penalty"]


def test_a_silo_that_lost_its_control_variate_is_noticed_before_anything_is_summed(
    tmp_path: Path, doomed: dict[str, Moment]
) -> None:
    """The sum with another control variate would be wrong, and a second one at these weights is refused."""
    company, doomed["c"] = Company(tmp_path, algorithm="scaffold"), (2, "update", VALUES, "offer")
    for name in SILOS:
        company.start(name, returns=False)

    def forget() -> None:
        if not company.dead.wait(60):
            company.said.append("the test ended: c was not killed")
        for file in (tmp_path / "state-c").rglob("*.safetensors"):
            file.unlink()
        company.start("c")

    with pytest.warns(FedILCWarning, match="all silos start again without state"):
        history = company.run(tmp_path / "run", forget)
    assert [record["members"] for record in history] == [5, 5, 5]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All private keys and seeds that silos make."""
    made: list[bytes] = []
    new_key, token_bytes = fedilc.privacy.secure_sums.new_key, secrets_of_python.token_bytes

    def recorded_key() -> Any:
        made.append((key := new_key()).private_bytes_raw())
        return key

    def recorded_bytes(size: int | None = None) -> bytes:
        found = token_bytes(size)
        if size == 32:
            made.append(found)
        return found

    monkeypatch.setattr(fedilc.privacy.secure_sums, "new_key", recorded_key)
    monkeypatch.setattr(secrets_of_python, "token_bytes", recorded_bytes)
    return made


def test_no_secret_is_in_a_file_a_log_or_an_error(
    tmp_path: Path,
    known: list[bytes],
    doomed: dict[str, Moment],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    company, doomed["c"] = Company(tmp_path), (2, "statistics", VALUES, "sign")
    for name in SILOS:
        company.start(name)
    company.run(tmp_path / "run")
    identities = [one.key.private_bytes_raw() for one in company.identities.values()]
    assert len(known) > 3 * 5 * 4
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".key"]
    assert {"history.jsonl", "checkpoint.safetensors", "signed-totals-a.jsonl"} <= {f.name for f in files}
    said = "".join([*company.said, caplog.text, *capfd.readouterr()]).encode()
    contents = [said, *(path.read_bytes() for path in files)]
    for secret in (*known, *identities):
        forms = (secret, secret.hex().encode(), base64.b64encode(secret)[:40])
        assert not any(form in content for form in forms for content in contents)
