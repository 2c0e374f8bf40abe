"""Ranks meet whatever attempts before theirs left behind, and agree on what all must know."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from fedilc.runtimes.torchrun import RESTARTS, Attempt, RankInfo, RankLostError, join_attempt

LONG = timedelta(seconds=30)


@pytest.fixture
def kept() -> TCPStore:
    """The store that torchrun keeps over all restarts."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def met(kept: TCPStore, size: int, order: list[int]) -> list[Attempt]:
    """What each rank knows; they come in this order, each over its own connection."""
    clients = [TCPStore("127.0.0.1", kept.port, is_master=False) for _ in range(size)]
    with ThreadPoolExecutor(size) as ranks:
        found = {rank: ranks.submit(join_attempt, clients[rank], rank, size, LONG) for rank in order}
        return [found[rank].result() for rank in range(size)]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_each_attempt_has_a_store_of_its_own(kept: TCPStore, order: list[int]) -> None:
    for attempt in ("first", "second", "third"):
        joined = met(kept, 3, order)
        assert not any(one.store.check(["left"]) for one in joined)
        joined[order[0]].store.set("left", attempt)
        assert [one.store.get("left").decode() for one in joined] == [attempt] * 3


def test_a_rank_that_reads_the_nonces_of_an_attempt_that_is_over_waits_for_the_new_one(
    kept: TCPStore,
) -> None:
    met(kept, 2, [0, 1])
    client = TCPStore("127.0.0.1", kept.port, is_master=False)
    with pytest.raises(RankLostError, match="not all ranks started in time"):
        join_attempt(client, 1, 2, timedelta(seconds=0.3))
    left, right = met(kept, 2, [1, 0])
    left.store.set("here", "yes")
    assert right.store.get("here") == b"yes"


def test_ranks_meet_under_the_prefix_that_torch_gives_each_attempt(
    kept: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's prefix has each machine's own count of attempts in it."""
    monkeypatch.setenv(RESTARTS, "1")
    with ThreadPoolExecutor(2) as ranks:
        first, second = (
            ranks.submit(join_attempt, PrefixStore(f"/worker/attempt_{count}", kept), rank, 2, LONG)
            for rank, count in ((0, 0), (1, 1))
        )
        assert first.result().restarted
        assert second.result().restarted


def test_an_attempt_may_have_fewer_or_more_ranks_than_the_one_before(kept: TCPStore) -> None:
    for size in (3, 2, 4):
        assert [len(one.ranks) for one in met(kept, size, list(range(size)))] == [size] * size


def test_one_machine_that_began_again_is_a_restart_of_all(kept: TCPStore) -> None:
    assert Attempt(kept, [RankInfo("a", 0, None), RankInfo("b", 2, None)]).restarted
    assert not Attempt(kept, [RankInfo("a", 0, None), RankInfo("b", 0, None)]).restarted


@pytest.mark.parametrize(
    ("gpus", "nccl"),
    [
        ((None, None), False),
        (("node1 a", None), False),
        (("node1 a", "node1 a"), False),
        (("node1 a", "node1 b"), True),
        (("node1 a", "node2 a"), True),
    ],
)
def test_gpus_speak_to_each_other_only_if_each_rank_has_its_own(
    kept: TCPStore, gpus: tuple[str | None, ...], nccl: bool
) -> None:
    assert Attempt(kept, [RankInfo("a", 0, gpu) for gpu in gpus]).nccl is nccl


def test_a_rank_that_nobody_joins_says_so(kept: TCPStore) -> None:
    with pytest.raises(RankLostError, match="not all ranks started in time"):
        join_attempt(kept, 0, 2, timedelta(seconds=0.2))
