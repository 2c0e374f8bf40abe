"""Observers of real runs: stopping early, and keeping the best round's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_silos import QUICK, examples, silo
from torch import nn

from fedilc import Federation, Result, Silo, train
from fedilc.errors import ConfigError
from fedilc.evaluation import select
from fedilc.models import build_model
from fedilc.storage.files import read_tensors
from fedilc.storage.run_folder import RunFolder
from fedilc.training.callbacks import Callback, EarlyStopping, KeepBest, Run


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Silos whose validation labels contradict training, so that only the test loss keeps falling."""
    generator = torch.Generator().manual_seed(5)
    silos = []
    for name in ("a", "b"):
        x = torch.randn(40, 3, generator=generator)
        y = (x[:, 0] > 0).float()
        silos.append(Silo(name, x[:24], y[:24], x[24:], 1 - y[24:]))
    x = torch.randn(30, 3, generator=generator)
    return Federation("contrary", silos, x, (x[:, 0] > 0).float())


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model("mlp", (3,), 1, seed=1, hidden=[5])


def go(federation: Federation, model: nn.Module, rounds: int, *callbacks: Callback, **more: Any) -> Result:
    return train(federation, model, rounds=rounds, learning_rate=0.02, callbacks=callbacks, **more)


class Diary(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_start(self, run: Run) -> None:
        self.lines.append(f"start after {len(run.history)} of {run.rounds}")

    def on_round(self, run: Run, record: dict[str, Any]) -> None:
        assert record is run.history[-1]
        self.lines.append(f"round {record['round']}")

    def on_end(self, run: Run) -> None:
        self.lines.append(f"end after {len(run.history)}")


def test_a_callback_hears_of_start_rounds_and_end(federation: Federation, model: nn.Module) -> None:
    diary = Diary()
    go(federation, model, 2, diary)
    assert diary.lines == ["start after 0 of 2", "round 1", "round 2", "end after 2"]


def test_a_resumed_run_tells_callbacks_how_far_it_is(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    go(federation, model, 2, out=tmp_path)
    diary = Diary()
    go(federation, model, 3, diary, out=tmp_path, resume=True)
    assert diary.lines == ["start after 2 of 3", "round 3", "end after 3"]


def test_early_stopping_ends_a_run_once_its_loss_has_not_fallen_for_patience_rounds(
    federation: Federation, model: nn.Module
) -> None:
    result = go(federation, model, 30, EarlyStopping(patience=3))
    losses = [record["validation_loss"] for record in result.history]
    assert len(losses) < 30
    assert losses.index(min(losses)) == len(losses) - 1 - 3
    assert result.stopped == "validation_loss has not fallen for 3 rounds"


def test_early_stopping_lets_a_run_finish_whose_loss_falls(federation: Federation, model: nn.Module) -> None:
    result = go(federation, model, 12, EarlyStopping(patience=1, monitor="train_loss"))
    assert len(result.history) == 12
    assert result.stopped is None


def test_early_stopping_asks_for_a_fall_of_at_least_least(federation: Federation, model: nn.Module) -> None:
    result = go(federation, model, 12, EarlyStopping(patience=2, monitor="train_loss", min_delta=10.0))
    assert len(result.history) == 3


def test_early_stopping_counts_evaluated_rounds_only(federation: Federation, model: nn.Module) -> None:
    result = go(federation, model, 30, EarlyStopping(patience=2, min_delta=10.0), evaluate_every=4)
    evaluated = [record["round"] for record in result.history if "validation_loss" in record]
    assert evaluated == [1, 4, 8]
    assert len(result.history) == 8


@pytest.mark.parametrize("key", ["no_such_loss", "validation_los"])
def test_early_stopping_on_a_number_that_is_not_recorded_says_which_are(
    federation: Federation, model: nn.Module, key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"'{key}', which no .*; records have train_loss, .*test_loss"):
        go(federation, model, 5, EarlyStopping(1, monitor=key))


@pytest.mark.parametrize(
    "callbacks", [[], [EarlyStopping(patience=2, min_delta=10.0)]], ids=["without", "with"]
)
def test_a_run_that_stopped_early_stays_stopped_when_resumed(
    federation: Federation, model: nn.Module, tmp_path: Path, callbacks: list[Callback]
) -> None:
    first = go(federation, model, 30, EarlyStopping(patience=2, min_delta=10.0), out=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    again = go(federation, model, 30, *callbacks, out=tmp_path, resume=True)
    assert again.stopped == first.stopped
    assert again.history == first.history
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize("patience", [0, -1])
def test_patience_is_at_least_one_round(patience: int) -> None:
    with pytest.raises(ConfigError, match=f"patience={patience} .* at least 1"):
        EarlyStopping(patience)


def state(result: Result) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in result.model.named_parameters()}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


CHOSEN = {"validation": 1, "oracle": 9, "last": 9}


def keepers() -> dict[str, KeepBest]:
    return {criterion: KeepBest(criterion) for criterion in CHOSEN}


@pytest.fixture(scope="module")
def straight(federation: Federation, model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of nine rounds without an interruption, with a keeper for every criterion."""
    out = tmp_path_factory.mktemp("straight")
    go(federation, model, 9, *keepers().values(), out=out)
    return out


@pytest.mark.parametrize("criterion", CHOSEN)
def test_keep_best_holds_the_weights_of_the_round_its_criterion_chooses(
    federation: Federation, model: nn.Module, straight: Path, criterion: str
) -> None:
    chosen = select(RunFolder(straight).history(), criterion)["round"]
    assert chosen == CHOSEN[criterion]
    weights, about = read_tensors(straight / f"best-{criterion}.safetensors")
    assert about["round"] == chosen
    assert_same(weights, state(go(federation, model, chosen)))


def test_keep_best_keeps_weights_in_memory_where_there_is_no_folder(
    federation: Federation, model: nn.Module, straight: Path
) -> None:
    keeper = KeepBest()
    last = state(go(federation, model, 7, keeper))
    assert keeper.round == CHOSEN["validation"]
    assert_same(keeper.weights, read_tensors(straight / "best-validation.safetensors")[0])
    assert not all(torch.equal(keeper.weights[name], tensor) for name, tensor in last.items())


@pytest.mark.parametrize("interrupted", [3, 8])
def test_keep_best_survives_a_resume(
    federation: Federation, model: nn.Module, tmp_path: Path, straight: Path, interrupted: int
) -> None:
    go(federation, model, interrupted, *keepers().values(), out=tmp_path)
    resumed = keepers()
    go(federation, model, 9, *resumed.values(), out=tmp_path, resume=True)
    for criterion, keeper in resumed.items():
        name = f"best-{criterion}.safetensors"
        assert keeper.round == CHOSEN[criterion]
        assert_same(keeper.weights, read_tensors(straight / name)[0])
        assert (tmp_path / name).read_bytes() == (straight / name).read_bytes()


def test_keep_best_keeps_nothing_where_its_criterion_has_nothing_to_choose_by(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    keeper = KeepBest("oracle")
    go(Federation("no test", federation.silos), model, 2, keeper, out=tmp_path)
    assert keeper.round is None
    assert not (tmp_path / "best-oracle.safetensors").exists()


def test_keep_best_refuses_an_unknown_criterion() -> None:
    with pytest.raises(ConfigError, match="criterion 'valdation' is unknown; did you mean 'validation'"):
        KeepBest("valdation")


def test_a_plain_function_or_an_object_with_one_method_may_observe(
    federation: Federation, model: nn.Module
) -> None:
    class OnlyEnd:
        rounds = 0

        def on_end(self, run: Run) -> None:
            self.rounds = len(run.history)

    seen, ending = [], OnlyEnd()
    train(federation, model, "fedsgd", rounds=2, learning_rate=0.1, callbacks=[seen.append, ending])
    assert [record["round"] for record in seen] == [1, 2]
    assert ending.rounds == 2


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("validation_loss", "'validation_loss', which no round of this run records; hold out examples"),
        ("test_accuracy", "'test_accuracy', which no round of this run records; give a test set"),
        ("val_loss", "'val_loss', which no round of this run records; records have train_loss"),
    ],
)
def test_early_stopping_on_a_number_that_never_comes_is_an_error(tmp_path: Path, key: str, said: str) -> None:
    federation = Federation("f", [Silo("a", *examples(1)), Silo("b", *examples(2))])
    with pytest.raises(ConfigError, match=said):
        train(
            federation,
            nn.Linear(3, 1),
            callbacks=[EarlyStopping(2, monitor=key)],
            out=tmp_path / "run",
            **QUICK,
        )
    assert key == "val_loss" or not (tmp_path / "run").exists()


def test_early_stopping_with_validation_data_stops() -> None:
    federation = Federation("f", [silo("a", 1), silo("b", 2)])
    options = QUICK | {"rounds": 50, "learning_rate": 3.0}
    assert train(federation, nn.Linear(3, 1), callbacks=[EarlyStopping(2)], **options).stopped


@pytest.mark.parametrize(
    ("monitor", "mode", "values", "stopped"),
    [
        ("validation_accuracy", None, [0.5, 0.6, 0.7, 0.8], None),
        ("validation_accuracy", None, [0.5, 0.6, 0.6, 0.6], "validation_accuracy has not risen for 2 rounds"),
        ("validation_accuracy", "min", [0.5, 0.6, 0.7], "validation_accuracy has not fallen for 2 rounds"),
        ("validation_loss", "max", [0.5, 0.4, 0.3], "validation_loss has not risen for 2 rounds"),
        ("test_auroc", None, [0.5, 0.505, 0.511, 0.515], None),
        ("test_auroc", None, [0.5, 0.505, 0.509], "test_auroc has not risen for 2 rounds"),
    ],
)
def test_higher_may_be_better_and_small_changes_do_not_count(
    monitor: str, mode: Any, values: list[float], stopped: str | None
) -> None:
    stopper, run = EarlyStopping(monitor=monitor, mode=mode, min_delta=0.01, patience=2), Run(rounds=9)
    for number, value in enumerate(values, 1):
        run.history.append({"round": number, monitor: value})
        stopper.on_round(run, run.history[-1])
    assert run.stopped == stopped


@pytest.mark.parametrize("wrong", [{"mode": "up"}, {"min_delta": -1.0}, {"min_delta": float("nan")}])
def test_early_stopping_refuses_what_it_cannot_use(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EarlyStopping(2, **wrong)
