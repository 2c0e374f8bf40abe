"""Bytes and processor time of a round with secure sums, beside one without, and how they grow with silos.

Five silos of random examples in the shape of Color-MNIST's (392 inputs, two layers of 390) are threads of
this process, which join over loopback, so that its processor time is that of silos and coordinator together.
The last rows are the sums alone: masks and shares of 50,000
values, without HTTP, in processor seconds per silo.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.timing import Row, at_most
from fedilc import Silo
from fedilc.config import parse_experiment
from fedilc.privacy.identities import Identity, Roster
from fedilc.privacy.secure_sums import SiloSum, SumCollector, SumContext
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.coordinator import RestRuntime, listening, make_app
from fedilc.runtimes.rest.http_client import HttpClient
from fedilc.runtimes.rest.participant import Participant, SiloLimits
from fedilc.runtimes.rest.secure_runtime import SecureRuntime
from fedilc.runtimes.rest.secure_silo import SecureMember
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.training.callbacks import as_callback

SILOS = tuple("abcde")
GEOMETRIC_BYTES, MEAN_BYTES, MOST_SECONDS = 4.0, 3.0, 1.25
_VALUES = 50_000


def rows(quick: bool) -> list[Row]:
    """Return the ratios."""
    found = []
    examples, rounds = (500, 3) if quick else (8000, 6)
    for algorithm, most in (("fishr-inter-geo", GEOMETRIC_BYTES), ("fedavg", MEAN_BYTES)):
        plain = _round(algorithm, examples, rounds, secure=False)
        secure = _round(algorithm, examples, rounds, secure=True)
        for what, key, limit in (
            (f"bytes of a round, {algorithm}", "bytes", most),
            (f"bytes of replies, {algorithm}", "replies", most),
            (f"processor time of a round, {algorithm}", "seconds", MOST_SECONDS),
        ):
            unit, scale = ("s", 1.0) if key == "seconds" else ("MB", 1e-6)
            detail = f"{secure[key] * scale:.2f} and {plain[key] * scale:.2f} {unit}"
            found.append(at_most("secure", what, "the same without", secure[key] / plain[key], limit, detail))
    few = _seconds_per_silo(5)
    for silos in (20,) if quick else (20, 100):
        many = _seconds_per_silo(silos)
        detail = f"{1e3 * many:.0f} and {1e3 * few:.0f} ms of {_VALUES} values"
        what = f"processor time of a sum per silo, {silos} silos"
        found.append(at_most("secure", what, "of 5 silos", many / few, silos / 5 * 2, detail))
    return found


def _round(algorithm: str, examples: int, rounds: int, secure: bool) -> dict[str, float]:
    """Return the bytes of a round, those of its replies, and its processor seconds, after the first."""
    data = {"source": "remote", "silos": list(SILOS), "inputs": [392]}
    values = {"rounds": rounds, "learning_rate": 3e-4, "algorithm": algorithm, "evaluate_every": 1}
    model = {"name": "mlp", "hidden": [390, 390]}
    settings = parse_experiment({**values, "data": data, "model": model, "secure": secure or None})
    identities, roster = _people(SILOS)
    run = RemoteRun.of(settings, Path(), roster=roster.digest if secure else None)
    queue = TaskQueue(run.manifest)
    runtime: RestRuntime = RestRuntime(queue, 5, 600)
    if secure:
        runtime = SecureRuntime(queue, 5, 600, roster)
    training = run.training(runtime)
    address = Address("127.0.0.1", 0, insecure=True)
    seen: list[tuple[float, int, int]] = []

    def note(_record: Mapping[str, Any]) -> None:
        statuses = queue.silos.values()
        received = sum(status.bytes_received for status in statuses)
        seen.append((time.process_time(), received + sum(s.bytes_sent for s in statuses), received))

    with tempfile.TemporaryDirectory() as folder, listening(make_app(queue, None), address) as port:
        threads = []
        for name in SILOS:
            member = SecureMember(identities[name], roster) if secure else None
            limits = SiloLimits(state=Path(folder) / name)
            http = HttpClient(f"http://127.0.0.1:{port}", None)
            make = partial(_silo, name, examples)
            silo = Participant(http, name, make, device="cpu", limits=limits, secure=member)
            threads.append(threading.Thread(target=silo.take_part, daemon=True))
            threads[-1].start()
        training.run([as_callback(note)], None, False, {})
        queue.finish("complete")
        for thread in threads:
            thread.join(30)
    (start, first, first_replies), (end, last, last_replies) = seen[0], seen[-1]
    done = rounds - 1
    return {
        "seconds": (end - start) / done,
        "bytes": (last - first) / done,
        "replies": (last_replies - first_replies) / done,
    }


def _silo(name: str, examples: int, _manifest: Manifest) -> Silo:
    draw = torch.Generator().manual_seed(ord(name))
    x = torch.rand(examples, 392, generator=draw)
    y = (x[:, 0] > 0.5).long()
    return Silo(name, x, y, x[:100], y[:100])


def _people(names: Sequence[str]) -> tuple[dict[str, Identity], Roster]:
    identities = {name: Identity(Ed25519PrivateKey.generate()) for name in names}
    return identities, Roster({name: one.public for name, one in sorted(identities.items())})


def _seconds_per_silo(silos: int) -> float:
    """Return the processor seconds of one sum per silo, the coordinator's included."""
    names = [f"silo-{number:03}" for number in range(silos)]
    identities, roster = _people(names)
    context = SumContext("run", roster.digest, 1, "update", "0")
    words, seen = np.ones(_VALUES, np.uint64), {"weights": ""}
    started = time.process_time()
    members = {name: SiloSum(identities[name], roster, name, context) for name in names}
    collector = SumCollector(context, roster)
    for name, member in members.items():
        collector.add_offer(name, member.offer())
    for name, member in members.items():
        collector.add_sealed(name, member.share(collector.offers))
    for name, member in members.items():
        collector.add_words(name, member.mask(collector.sealed_for(name), words.copy, seen))
    for name, member in members.items():
        signature = member.sign(collector.survivors, lambda _silos: None)
        collector.add_signature(name, signature, seen)
    for name, member in members.items():
        collector.add_shares(name, member.unmask(collector.signatures))
    assert (collector.total() == silos).all()
    return (time.process_time() - started) / silos
