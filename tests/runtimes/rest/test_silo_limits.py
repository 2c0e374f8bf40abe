"""What a silo refuses: another run than agreed, too large a network, too few examples."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch

from fedilc.data import Silo
from fedilc.errors import ConfigError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.rest.http_client import HttpClient
from fedilc.runtimes.rest.participant import Participant, SiloLimits
from rest import queue_of, remote, served


def joining(client: httpx.Client, limits: SiloLimits) -> None:
    """A silo of six examples that takes part in a run that is over, or says why not."""

    def make(_: Manifest) -> Silo:
        return Silo("a", torch.zeros(6, 3), [0, 1] * 3)

    line = HttpClient(str(client.base_url), None, give_up_after=0)
    try:
        Participant(line, "a", make, device="cpu", limits=limits).take_part()
    finally:
        line.close()


def test_a_silo_joins_the_run_that_it_was_told_and_no_other() -> None:
    queue = queue_of()
    queue.finish("complete")
    with served(queue) as client:
        joining(client, SiloLimits(digest=queue.manifest.hash))
        joining(client, SiloLimits(digest=queue.manifest.hash[:16]))
        with pytest.raises(ConfigError, match="`manifest_digest`"):
            joining(client, SiloLimits(digest="0" * 64))
    for digest in ("abc", "x" * 64, "A" * 64):
        with pytest.raises(ConfigError, match="is not a manifest's digest"):
            SiloLimits(digest=digest)


def test_a_silo_with_a_state_folder_trusts_the_first_run_at_an_address(tmp_path: Path) -> None:
    first, second = queue_of(), queue_of(remote(rounds=9))
    first.finish("complete")
    limits = SiloLimits(state=tmp_path / "state")
    with served(first) as client:
        joining(client, limits)
        joining(client, limits)
        first.manifest = second.manifest
        with pytest.raises(ConfigError, match=r"joined .* before"):
            joining(client, limits)
        joining(client, SiloLimits(digest=second.manifest.hash, state=tmp_path / "state"))
        joining(client, limits)


def test_a_silo_takes_no_part_with_fewer_examples_than_it_was_told() -> None:
    queue = queue_of()
    queue.finish("complete")
    with served(queue) as client:
        joining(client, SiloLimits(min_examples=6))
        with pytest.raises(ConfigError, match="6 examples to train on, fewer than `min_examples=7`"):
            joining(client, SiloLimits(min_examples=7))
