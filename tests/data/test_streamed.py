"""Examples that are read when they are used: the same bits as in memory, in bounded memory."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import NETWORK_ALGORITHMS, redraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedilc import Federation, Silo, train
from fedilc.data.digests import silo_digest
from fedilc.data.inputs import Several, tensors_of
from fedilc.data.streamed import stream
from fedilc.errors import CheckpointError, DataError, FedILCWarning
from fedilc.gradients import ModelRunner

# The rounding of a matrix product depends on where rows begin in memory: here every row is a cache line, so
# that the chunks of an array in memory begin as those that are read do.
WIDTH = 16
READ_IN_ORDER = ("fedsgd", "fedcurv", "fishr-inter-geo", "coral", "iga")
pytestmark = pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")


def examples(seed: int, count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, -1] > 0).long()


def in_memory(name: str, seed: int, count: int) -> Silo:
    return Silo(name, *examples(seed, count), *examples(seed + 50, 9))


def from_items(name: str, seed: int, count: int, **more: Any) -> Silo:
    sets = (TensorDataset(*examples(*one)) for one in ((seed, count), (seed + 50, 9)))
    return Silo.from_dataset(name, *sets, **more)


def from_batches(name: str, seed: int, count: int) -> Silo:
    sets = (TensorDataset(*examples(*one)) for one in ((seed, count), (seed + 50, 9)))
    return Silo.from_dataset(name, *(DataLoader(one, batch_size=7) for one in sets))


def federation(make: Any) -> Federation:
    silos = [make("abc"[seed], seed, count) for seed, count in enumerate((20, 13, 37))]
    return Federation("f", silos, *examples(99, 11))


def network() -> nn.Module:
    return redraw(nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 1)))


def run(make: Any, algorithm: str, **options: Any) -> Any:
    options = {"rounds": 2, "learning_rate": 0.1, **options}
    return train(federation(make), network(), algorithm, **options)


def assert_same(left: Any, right: Any) -> None:
    assert json.dumps(left.history) == json.dumps(right.history)
    for one, other in zip(left.model.parameters(), right.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many chunks":
        monkeypatch.setattr(ModelRunner.__init__, "__defaults__", (None, 1000))


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("algorithm", NETWORK_ALGORITHMS)
def test_a_dataset_gives_the_bits_of_the_same_examples_in_memory(algorithm: str) -> None:
    options = {"environment_size": 3}
    assert_same(run(from_items, algorithm, **options), run(in_memory, algorithm, **options))


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        *((name, {}) for name in READ_IN_ORDER),
        ("fishr-intra-geo", {"environment_size": 1}),
        ("fedavg", {"batch_size": "all"}),
        ("fedsgd", {"balance": "weights"}),
    ],
)
def test_batches_give_the_bits_of_the_same_examples_in_memory(
    algorithm: str, options: dict[str, Any]
) -> None:
    assert_same(run(from_batches, algorithm, **options), run(in_memory, algorithm, **options))


def test_classes_of_a_dataset_are_oversampled_as_in_memory() -> None:
    options = {"balance": "oversample"}
    assert_same(run(from_items, "fedavg", **options), run(in_memory, "fedavg", **options))


def test_regression_by_newton_has_the_coefficients_of_memory() -> None:
    line = nn.Linear(WIDTH, 1)
    options = {"rounds": 30, "learning_rate": 1.0, "weight_decay": 0.1}
    found = (train(federation(make), line, "logistic", **options) for make in (from_items, in_memory))
    assert_same(*found)


def test_images_of_a_dataset_give_the_bits_of_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 3, 8, 8, generator=generator), torch.arange(30) % 2
    silos = Silo("a", x, y), Silo.from_dataset("a", TensorDataset(x, y))
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)
    for environment_size in (1, 4):
        options = {"rounds": 2, "learning_rate": 0.1, "environment_size": environment_size}
        model = redraw(nn.Sequential(*layers), scale=0.1)
        assert_same(*(train(Federation("f", [s]), model, "fishr-intra-geo", **options) for s in silos))


@pytest.mark.parametrize("loader", [False, True])
def test_several_inputs_are_streamed(loader: bool) -> None:
    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, place: int) -> Any:
            x, y = examples(0, 12)
            return {"left": x[place, :2], "right": x[place, 2:]}, y[place]

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 1), nn.Linear(WIDTH - 2, 1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.one(left) + self.other(right)

    x, y = examples(0, 12)
    whole = Silo("a", {"left": x[:, :2].clone(), "right": x[:, 2:].clone()}, y)
    streamed = Silo.from_dataset("a", DataLoader(Pairs(), batch_size=5) if loader else Pairs())
    assert silo_digest(streamed) == silo_digest(whole)
    options = {"rounds": 2, "learning_rate": 0.1}
    assert_same(*(train(Federation("f", [s]), redraw(Sum()), "fedsgd", **options) for s in (whole, streamed)))


class Live:
    """How many of the examples that were read are still in memory, and the most there ever were."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def track(self, x: Tensor) -> Tensor:
        kept = x.clone()
        self.now += len(kept)
        self.most = max(self.most, self.now)
        weakref.finalize(kept, self._gone, len(kept))
        return kept

    def _gone(self, count: int) -> None:
        self.now -= count


class Generated(Dataset[Any]):
    """Items that are made on access."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.full((WIDTH,), float(place % 17)).sin() + place % 2, place % 2


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedsgd", {}),
        ("fishr-inter-geo", {}),
        ("fishr-intra-geo", {"environment_size": 1}),
        ("fedavg", {"batch_size": "all", "local_steps": 2}),
    ],
)
@pytest.mark.parametrize("loader", [False, True])
def test_memory_is_bounded_by_the_chunk_and_not_by_the_silo(
    algorithm: str, options: dict[str, Any], loader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelRunner.__init__, "__defaults__", (None, 6000))
    source = DataLoader(Generated(), batch_size=16) if loader else Generated()
    silo, live = Silo.from_dataset("a", source, source), Live()
    silo.x, silo.x_val = silo.x.map(live.track), silo.x_val.map(live.track)
    train(Federation("f", [silo]), network(), algorithm, rounds=1, learning_rate=0.1, **options)
    assert 0 < live.most <= 600
    assert live.now == 0


READS = st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=6)


@given(count=st.integers(1, 30), batch=st.integers(1, 9), reads=READS)
def test_any_reading_gives_the_rows_asked_for(count: int, batch: int, reads: list[tuple[int, int]]) -> None:
    x, y = examples(count, count)
    pairs = TensorDataset(x, y)
    for source in (pairs, DataLoader(pairs, batch_size=batch)):
        found, labels = stream(source, "here")
        assert torch.equal(labels, y)
        for start, length in reads:
            rows = slice(min(start, count - 1), min(start + length, count))
            assert torch.equal(tensors_of(found[rows])[0], x[rows])


def test_rows_of_rows_are_read_when_they_are_used() -> None:
    x, y = examples(0, 10)
    found = stream(TensorDataset(x, y), "here")[0]
    chosen = found.select(torch.tensor([9, 3, 3, 1])).select(torch.tensor([1, 0]))
    assert len(chosen) == 2
    assert torch.equal(tensors_of(chosen[:])[0], x[[3, 9]])
    assert torch.equal(tensors_of(chosen[torch.tensor([1])])[0], x[[9]])


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedavg", {}), ("fishr-intra-geo", {"environment_size": 3}), ("fedsgd", {"balance": "oversample"})],
)
def test_what_needs_random_order_is_refused_for_batches_in_one_sentence(
    algorithm: str, options: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=r"silo 'a' is an iterable of batches.*batch_size to 'all'") as error:
        run(from_batches, algorithm, **{"batch_size": 4, **options} if algorithm == "fedavg" else options)
    assert "\n" not in str(error.value)


class OneByOne(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), 0)])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (iter([(torch.zeros(2, 2), torch.zeros(2))]), "is an iterator, which can be read only once"),
        (OneByOne(), "is an IterableDataset, which yields single examples; give torch.utils.data.DataLoader"),
        (3, "is a int; give a dataset"),
        ([], "is empty: its dataset holds no example"),
        ([torch.zeros(3)], r"has items of type Tensor; each must be a pair \(x, y\)"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "has examples of shape .* all must have the same shape"),
        ([(torch.tensor([float("nan")]), 0)], "x holds a NaN"),
        ([(object(), 0)], "its examples cannot be read as tensors"),
        ([(torch.zeros(2), torch.zeros(2))], r"y has shape .*; give one label per example"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_one_sentence(source: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"silo 'a'.*{said}") as error:
        Silo.from_dataset("a", source)
    assert "\n" not in str(error.value)


def test_batches_that_are_shuffled_each_time_are_refused() -> None:
    x, y = examples(0, 64)
    silo = Silo.from_dataset("a", DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
    with pytest.raises(
        DataError, match=r"silo 'a' gave different labels when it was read again.*turn off shuf"
    ):
        train(Federation("f", [silo]), network(), "fedsgd", rounds=1, learning_rate=0.1)


def test_a_digest_is_that_of_memory_and_a_run_can_go_on_either_way(tmp_path: Path) -> None:
    def with_digest(name: str, seed: int, count: int) -> Silo:
        return from_items(name, seed, count, digest=True)

    whole = run(in_memory, "fedsgd", rounds=3)
    run(in_memory, "fedsgd", rounds=1, out=tmp_path / "run")
    assert_same(run(with_digest, "fedsgd", rounds=3, out=tmp_path / "run", resume=True), whole)

    def other(name: str, seed: int, count: int) -> Silo:
        return with_digest(name, seed + 1, count)

    with pytest.raises(CheckpointError, match="the data of silo 'a' differ"):
        run(other, "fedsgd", rounds=3, out=tmp_path / "run", resume=True)


def test_without_a_digest_a_resumed_run_says_that_data_could_not_be_compared(tmp_path: Path) -> None:
    whole = run(from_items, "fedsgd", rounds=3)
    run(from_items, "fedsgd", rounds=1, out=tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["silos"]
    assert facts["a"] == {"examples": 20, "digest": None}
    with pytest.warns(FedILCWarning, match=r"the examples of 'a', 'b'.*could not be compared"):
        resumed = run(from_items, "fedsgd", rounds=3, out=tmp_path / "run", resume=True)
    assert_same(resumed, whole)

    def fewer(name: str, seed: int, count: int) -> Silo:
        return from_items(name, seed, count - 1)

    with pytest.raises(CheckpointError, match="the data of silo 'a' differ"):
        run(fewer, "fedsgd", rounds=3, out=tmp_path / "run", resume=True)


def test_streamed_tuples_are_several_inputs_and_lists_of_numbers_one() -> None:
    x, y = stream([((torch.zeros(2), 1.0), 0), ((torch.ones(2), 2.0), 1)], "here")
    assert isinstance(x[:], Several)
    assert y.tolist() == [0, 1]
    assert isinstance(stream([([0.0, 1.0], 0)], "here")[0][:], Tensor)
