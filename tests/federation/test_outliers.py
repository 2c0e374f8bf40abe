"""Answers that are too long, and steps to infinity: named, set aside or undone, never applied."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import mlp
from torch import Tensor, nn

from fedilc import Federation, Silo, algorithms, train
from fedilc.aggregation import norm_of
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.errors import ConfigError, DivergedError, FedILCError, FedILCWarning, SilosLostError
from fedilc.evaluation import measure
from fedilc.federation import Program, Reply, Request
from fedilc.federation.outliers import AGAINST_ROUNDS, NormBound, Opposition, cosine_to
from fedilc.gradients import Loss, ModelRunner
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.local import LocalRuntime
from fedilc.storage.run_folder import RunFolder
from fedilc.training.callbacks import Callback, Run
from fedilc.training.loop import make_server

ROUNDS = 6
BAD_ROUND = 4


def federation_of(names: str = "abcde") -> Federation:
    generator = torch.Generator().manual_seed(3)
    silos = []
    for e, name in enumerate(names):
        x = torch.randn(12, 6, generator=generator) + 0.3 * e
        silos.append(Silo(name, x, (x[:, 0] > 0.3 * e).long()))
    return Federation("f", silos)


class Liar(Runtime):
    """Silos of which one answers `value` times what it found, in one step of one round."""

    def __init__(
        self, federation: Federation, algorithm: str, value: float, kind: str = "gradient", who: str = "b"
    ) -> None:
        options = Options(rounds=ROUNDS, learning_rate=0.05, environment_size=4)
        loss, model = Loss(federation.loss), mlp()
        program = Program.of(find_algorithm(algorithm)[1], federation.loss, options, model)
        runner = ModelRunner(model, loss)
        self.inner = LocalRuntime(federation, runner, program, lambda a, b: measure(loss, a, b))
        self.value, self.kind, self.who = value, kind, who
        self.rounds = {BAD_ROUND}
        self.told: dict[int, dict[str, str]] = {}

    def ask(self, request: Request) -> Iterator[Reply]:
        for reply in self.inner.ask(request):
            if request.round in self.rounds and reply.silo in self.who and self.kind in reply.tensors:
                for tensor in reply.tensors[self.kind].values():
                    tensor.mul_(self.value)
            yield reply

    def set_aside(self, reasons: dict[str, str], round_: int | None = None) -> None:
        if round_ is None:
            self.left_out = dict(reasons)
        else:
            self.told[round_] = dict(reasons)

    def reasons(self, silos: tuple[str, ...]) -> dict[str, str]:
        return dict.fromkeys(silos, "asleep")


def run(federation: Federation, runtime: Runtime | None, algorithm: str = "fedsgd", **options: object):
    settings = {
        "rounds": ROUNDS,
        "learning_rate": 0.05,
        "penalty_weight": 2.0,
        "environment_size": 4,
        **options,
    }
    return train(federation, mlp(), algorithm, runtime=runtime, **settings)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Losing(Liar):
    """The reference: the silo does not answer in that round at all."""

    def ask(self, request: Request) -> Iterator[Reply]:
        yield from (
            reply
            for reply in self.inner.ask(request)
            if request.round not in self.rounds or reply.silo not in self.who
        )


CASES = [
    *((name, "gradient") for name in algorithms.PAPER),
    ("fishr-inter-geo", "penalty"),
    ("fishr-inter-geo", "variance"),
    ("fedcurv", "variance"),
]


@pytest.mark.parametrize(("algorithm", "kind"), CASES)
def test_an_answer_far_too_long_is_set_aside_and_the_round_equals_one_without_the_silo(
    algorithm: str, kind: str
) -> None:
    federation = federation_of()
    liar = Liar(federation, algorithm, 1e15, kind)
    with pytest.warns(FedILCWarning, match=f"round 4 continued without silo 'b' .its {kind} has norm"):
        result = run(federation, liar, algorithm, min_silos=3)
    reference = run(federation, Losing(federation, algorithm, 1.0), algorithm, min_silos=3)
    assert_same(weights(result.model), weights(reference.model))
    record = result.history[BAD_ROUND - 1]
    assert list(record["set_aside"]) == ["b"]
    assert sorted(record["silos"]) == list("acde")
    assert sorted(result.history[BAD_ROUND]["silos"]) == list("abcde")
    assert liar.told == {BAD_ROUND: record["set_aside"]}
    assert "set_aside" not in result.history[0]


def test_silos_of_one_process_are_never_set_aside_and_stand_in_one_warning_each() -> None:
    generator = torch.Generator().manual_seed(3)
    scale = torch.tensor([1.0, 1.0, 1000.0, 1.0, 1.0])
    silos = []
    for e, name in enumerate("abcde"):
        x = torch.randn(12, 6, generator=generator) * scale[e]
        silos.append(Silo(name, x, (x[:, 0] > 0).long()))
    federation = Federation("f", silos)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(federation, None)
        free = run(federation, None, outlier_factor=0)
    sentences = [str(w.message) for w in caught if "still counts" in str(w.message)]
    assert len(sentences) == 1
    assert "from round 1 on, silo 'c' (its gradient has norm" in sentences[0]
    assert [record["silos"].keys() for record in result.history] == [set("abcde")] * ROUNDS
    assert not any("set_aside" in record for record in result.history)
    assert_same(weights(result.model), weights(free.model))


def test_in_one_process_a_silo_with_infinite_answers_is_asked_no_more_only_with_exclude() -> None:
    federation = federation_of()
    liar = Liar(federation, "fedsgd", math.inf)
    liar.sets_aside = False
    with pytest.warns(FedILCWarning, match="round 4 continued without silo 'b'"):
        result = run(federation, liar, on_divergence="exclude", min_silos=3)
    assert sorted(result.history[BAD_ROUND - 1]["silos"]) == list("acde")


def test_without_leave_to_go_on_the_run_stops_and_names_the_silo_and_its_norm(tmp_path: Path) -> None:
    federation = federation_of()
    with pytest.raises(SilosLostError, match=r"round 4 sets silo 'b' \(its gradient has norm .*e\+\d\d"):
        run(federation, Liar(federation, "fedsgd", 1e30), out=tmp_path / "run")
    assert len(RunFolder(tmp_path / "run").history()) == BAD_ROUND - 1
    calm = run(federation, None, out=tmp_path / "calm")
    resumed = run(federation, None, out=tmp_path / "run", resume=True)
    assert_same(weights(resumed.model), weights(calm.model))


def test_a_run_that_loses_a_silo_says_why_if_that_is_known() -> None:
    federation = federation_of()
    with pytest.raises(SilosLostError, match=r"round 4 lost b \(asleep\), which leaves 4 of 5 silos"):
        run(federation, Losing(federation, "fedsgd", 1.0))


def test_a_first_round_is_compared_with_itself() -> None:
    federation = federation_of("abc")
    liar = Liar(federation, "geometric", 1e30)
    liar.rounds = {1}
    with pytest.warns(FedILCWarning, match="round 1 continued without silo 'b'"):
        run(federation, liar, "geometric", min_silos=2)


def test_one_of_two_silos_is_compared_with_the_rounds_before() -> None:
    federation = federation_of("ab")
    with pytest.warns(FedILCWarning, match="round 4 continued without silo 'b'"):
        run(federation, Liar(federation, "fedsgd", 1e6), min_silos=1)


def test_a_resumed_run_compares_with_the_rounds_before_it_stopped(tmp_path: Path) -> None:
    federation = federation_of("ab")
    run(federation, None, rounds=BAD_ROUND - 1, out=tmp_path, min_silos=1)
    with pytest.warns(FedILCWarning, match="round 4 continued without silo 'b'"):
        run(federation, Liar(federation, "fedsgd", 1e6), out=tmp_path, resume=True, min_silos=1)


class Watched(Callback):
    """Keeps the state after every round."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_round(self, run: Run, _record: dict[str, object]) -> None:
        self.states.append({name: tensor.clone() for name, tensor in run.weights.items()})


@pytest.mark.parametrize("algorithm", algorithms.PAPER)
def test_a_step_to_infinity_is_undone_and_the_run_stops_with_a_sentence(
    algorithm: str, tmp_path: Path
) -> None:
    federation = federation_of()
    watched = Watched()
    liar = Liar(federation, algorithm, 1e25, who="abcde")
    with pytest.raises(DivergedError, match=r"round 4 made .* infinite and was undone; no silo stands out"):
        run(federation, liar, algorithm, out=tmp_path, callbacks=[watched])
    saved = RunFolder(tmp_path).load()
    assert saved.round == BAD_ROUND - 1
    assert all(torch.equal(saved.weights[name], tensor) for name, tensor in watched.states[-1].items())
    assert all(tensor.isfinite().all() for tensor in saved.tensors.values())
    calm = run(federation, None, algorithm, out=tmp_path, resume=True)
    assert_same(weights(calm.model), weights(run(federation, None, algorithm).model))


@pytest.mark.parametrize("done", [0, 3], ids=["first step", "later"])
def test_an_undone_step_leaves_weights_and_optimizer_as_they_were(done: int) -> None:
    liar = Liar(federation_of(), "fedsgd", 1e30, who="abcde")
    liar.silos, liar.rounds = liar.inner.silos, {done + 1}
    options = Options(rounds=ROUNDS, learning_rate=0.05, weight_decay=0.01)
    server = make_server(mlp(), liar, liar.inner.program, options)
    for number in range(1, done + 1):
        server.round(number, evaluate=False)
    before = {name: tensor.clone() for name, tensor in server.tensors().items()}
    with pytest.raises(DivergedError, match="was undone"):
        server.round(done + 1)
    after = server.tensors()
    assert after.keys() == before.keys()
    assert_same(list(after.values()), list(before.values()))


def test_without_a_bound_a_step_to_infinity_names_the_silo_that_stands_out() -> None:
    federation = federation_of()
    with pytest.raises(
        DivergedError, match=r"undone; silo 'b' \(its gradient .* the median is .*\) stands out"
    ):
        run(federation, Liar(federation, "fedsgd", 1e25), outlier_factor=0)


@pytest.mark.parametrize("value", [1e25, math.nan], ids=["finite", "NaN"])
def test_exclude_asks_again_without_the_silo_that_stands_out(value: float) -> None:
    federation = federation_of()
    options = {"outlier_factor": 0, "on_divergence": "exclude", "min_silos": 3}
    with pytest.warns(FedILCWarning, match="round 4 continued without silo 'b'"):
        result = run(federation, Liar(federation, "fedsgd", value), **options)
    reference = run(federation, Losing(federation, "fedsgd", 1.0), min_silos=3)
    assert_same(weights(result.model), weights(reference.model))


def test_after_a_stop_a_run_may_be_resumed_with_another_choice(tmp_path: Path) -> None:
    federation = federation_of()
    liar = Liar(federation, "fedsgd", 1e25)
    with pytest.raises(DivergedError):
        run(federation, liar, outlier_factor=0, min_silos=3, out=tmp_path)
    with pytest.warns(FedILCWarning, match="continued without silo 'b'"):
        run(federation, liar, on_divergence="exclude", min_silos=3, out=tmp_path, resume=True)


def test_a_learning_rate_that_explodes_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FedILCError, match="learning rate"):
        run(federation_of(), None, learning_rate=1e30, out=tmp_path)
    assert all(tensor.isfinite().all() for tensor in RunFolder(tmp_path).load().weights.values())


@pytest.mark.parametrize("algorithm", ["fedsgd", "geometric"])
def test_max_norm_clips_each_silos_gradient_before_it_is_aggregated(algorithm: str) -> None:
    federation = federation_of()
    most = 0.3
    seen: list[float] = []

    class Clipping(Liar):
        def ask(self, request: Request) -> Iterator[Reply]:
            for reply in self.inner.ask(request):
                for gradient in (g for kind, g in reply.tensors.items() if kind == "gradient"):
                    flat = torch.cat([tensor.double().flatten() for tensor in gradient.values()])
                    seen.append(float(flat.norm()))
                    for tensor in gradient.values():
                        tensor.mul_(min(1.0, most / seen[-1]))
                yield reply

    clipped = run(federation, None, algorithm, max_norm=most)
    oracle = run(federation, Clipping(federation, algorithm, 1.0), algorithm)
    assert min(seen) < most < max(seen)
    for left, right in zip(weights(clipped.model), weights(oracle.model), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_norms_are_of_all_numbers_together_and_recorded_as_medians() -> None:
    federation = federation_of()
    found: list[float] = []

    class Measured(Liar):
        def ask(self, request: Request) -> Iterator[Reply]:
            for reply in self.inner.ask(request):
                if request.round == 2 and "gradient" in reply.tensors:
                    numbers = itertools.chain(
                        *(t.flatten().tolist() for t in reply.tensors["gradient"].values())
                    )
                    found.append(math.sqrt(math.fsum(number * number for number in numbers)))
                yield reply

    result = run(federation, Measured(federation, "fedsgd", 1.0))
    assert result.history[1]["norms"] == {"gradient": pytest.approx(sorted(found)[2], rel=1e-5)}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_no_number_is_infinite(value: float) -> None:
    assert norm_of({"a": torch.tensor([1.0, value])}) == math.inf


def test_what_is_usual_is_the_larger_of_the_rounds_median_and_the_last_rounds() -> None:
    bound = NormBound(100.0)
    assert bound.outliers("gradient", {"a": 0.0, "b": 0.0, "c": 1.0}) == {}
    assert list(bound.outliers("gradient", {"a": 1.0, "b": 1.0, "c": 101.0})) == ["c"]
    assert list(bound.outliers("gradient", {"a": 1.0, "b": 1e9})) == ["b"]
    assert bound.outliers("gradient", {"b": 1e9}) == {}
    bound.remember({"gradient": {"a": 10.0, "b": 10.0}}, "gradient")
    assert bound.outliers("gradient", {"a": 1.0, "b": 1.0, "c": 101.0}) == {}
    assert bound.outliers("gradient", {"a": 1e5, "b": 1e5, "c": 1e5}) == {}
    assert list(bound.outliers("gradient", {"a": 1.0, "b": 1e9})) == ["b"]
    assert NormBound(0.0).outliers("gradient", {"a": 1.0, "b": 1.0, "c": 1e30}) == {}


def test_one_of_two_silos_cannot_move_what_is_usual_upwards() -> None:
    bound = NormBound(100.0)
    for number in range(30):
        norms = {"honest": 1.0, "liar": 99.0 * 1.5**number}
        outliers = bound.outliers("gradient", norms)
        assert list(outliers) == (["liar"] if norms["liar"] > 100.0 else [])
        bound.remember({"gradient": norms if not outliers else {"honest": 1.0}}, "gradient")


def test_updates_that_are_long_three_rounds_in_a_row_are_told_once_and_set_nobody_aside() -> None:
    bound = NormBound()
    long = {"a": 1.0, "b": 1.1, "c": 0.9, "liar": 9.0}
    assert [bound.note_long(long) for _ in range(2)] == [{}, {}]
    assert bound.note_long(long)["liar"].endswith("over 8 times as long as the median, now 9 times")
    assert bound.note_long(long) == {}
    assert bound.outliers("gradient", long) == {}
    assert bound.note_long({**long, "liar": 7.0}) == {}
    assert [bound.note_long(long) for _ in range(2)] == [{}, {}], "the count begins again"
    assert NormBound(0).note_long(long) == {}, "without a bound nobody asked to be told"


def test_the_coordinator_warns_of_a_silo_that_sends_twenty_times_too_much() -> None:
    liar = Liar(federation_of(), "fedsgd", 20.0)
    liar.rounds = set(range(1, ROUNDS + 1))
    with pytest.warns(FedILCWarning, match=r"round 3: silo 'b' \(for 3 rounds .* it still counts") as caught:
        result = run(federation_of(), liar, "fedsgd")
    assert len(caught) == 1
    assert [record["silos"].keys() for record in result.history] == [set("abcde")] * ROUNDS


def test_a_penalty_term_may_be_as_many_times_longer_as_there_are_silos() -> None:
    norms = dict.fromkeys("abcd", 1.0)
    assert NormBound(100.0).outliers("penalty", {**norms, "e": 499.0}, cancels=True) == {}
    assert list(NormBound(100.0).outliers("penalty", {**norms, "e": 501.0}, cancels=True)) == ["e"]


@pytest.mark.parametrize("option", [{"on_divergence": "ignore"}, {"outlier_factor": -1}, {"max_norm": 0}])
def test_settings_that_make_no_sense_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        run(federation_of(), None, **option)


def local_steps(federation: Federation, times: float, who: str = "b") -> Liar:
    """A silo that sends its update after local steps times a number, in every round."""
    liar = Liar(federation, "fedavg", times, "update", who)
    liar.rounds = set(range(1, 100))
    return liar


STEPS = {"learning_rate": 1.0, "local_learning_rate": 0.5, "rounds": 40, "outlier_factor": 100.0}


def test_a_silo_inside_the_bound_that_makes_the_weights_extreme_is_named_and_no_honest_one() -> None:
    federation = federation_of()
    sentence = r"made the weights extreme .* undone; silo 'b' \(its update.* stands out"
    long = pytest.warns(FedILCWarning, match="silo 'b' .for 3 rounds its updates")
    with long, pytest.raises(DivergedError, match=sentence) as raised:
        run(federation, local_steps(federation, -60.0), "fedavg", min_silos=3, **STEPS)
    assert not any(f"silo {name!r}" in str(raised.value) for name in "acde")


def test_with_exclude_the_silo_that_made_the_weights_extreme_is_left_out_and_no_honest_one() -> None:
    federation = federation_of()
    liar = local_steps(federation, -60.0)
    long = pytest.warns(FedILCWarning, match="silo 'b' .for 3 rounds its updates")
    with long, pytest.warns(FedILCWarning, match="continued without silo 'b'"):
        result = run(federation, liar, "fedavg", min_silos=3, on_divergence="exclude", **STEPS)
    assert {silo for record in result.history for silo in record.get("set_aside", {})} == {"b"}
    assert all({*"acde"} <= record["silos"].keys() for record in result.history)


@pytest.mark.parametrize("mode", ["stop", "exclude"])
def test_if_the_weights_were_extreme_before_an_infinite_reply_past_norms_say_who_is_named(mode: str) -> None:
    """As in a run that was resumed from weights that were extreme already."""
    liar = Liar(federation_of(), "fedsgd", math.inf, who="d")
    liar.silos, liar.rounds = liar.inner.silos, {1}
    options = Options(rounds=ROUNDS, learning_rate=0.05, on_divergence=mode, min_silos=3)
    server = make_server(mlp(), liar, liar.inner.program, options)
    server.selection.bound.past = {"b": 60.0, "c": 2.5}
    with torch.no_grad():
        for parameter in server.model.parameters():
            parameter.mul_(1e6)
    with pytest.raises(DivergedError, match=r"extreme .*silo 'b' \(its updates .* 60 times .* stands out"):
        server.round(1)
    assert server.selection.bound.set_aside == {}


def test_past_norms_fade_and_a_resumed_run_has_them(tmp_path: Path) -> None:
    bound = NormBound()
    bound.remember({"gradient": {"a": 1.0, "b": 1.0, "c": 10.0}}, "gradient")
    assert bound.past == {"c": 10.0}
    assert list(bound.past_suspect("abc")) == ["c"]
    for _ in range(7):
        bound.remember({"gradient": {"a": 1.0, "b": 1.0, "c": 1.0}}, "gradient")
    assert bound.past == {"c": pytest.approx(10.0 * 0.9**7, rel=1e-4)}
    assert bound.past_suspect("abc") == {}
    federation = federation_of()
    liar = Liar(federation, "fedsgd", 7.0)
    run(federation, liar, rounds=BAD_ROUND, min_silos=3, out=tmp_path)
    assert RunFolder(tmp_path).load().facts["past_norms"].keys() == {"b"}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors.values()])


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_the_cosine_to_the_last_update_is_that_of_the_formula(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    update, values = (
        {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}
        for shapes in [{"a": (4, 3), "b": (5,)}] * 2
    )
    opposition = Opposition()
    opposition.remember(update)
    expected = torch.nn.functional.cosine_similarity(flat(update), flat(values), dim=0)
    found = cosine_to(opposition.direction, values, norm_of(values))
    assert found == pytest.approx(float(expected), abs=2e-3)


@pytest.mark.parametrize("norm", [0.0, math.inf])
def test_without_a_direction_of_its_own_a_silo_has_the_cosine_0(norm: float) -> None:
    assert cosine_to({"w": torch.ones(2, dtype=torch.float16)}, {"w": torch.full((2,), norm)}, norm) == 0.0


def test_the_silo_whose_sign_is_not_that_of_most_others_is_noticed_after_ten_rounds_in_a_row() -> None:
    """Whichever sign that is: a silo that turns the update around has the positive one."""
    opposition = Opposition()
    turned = {"a": -0.4, "b": 0.9, "c": -0.3, "d": -0.05}
    for number in range(1, AGAINST_ROUNDS + 2):
        found = opposition.judge(turned if number % 2 else {silo: -value for silo, value in turned.items()})
        assert found == ({"b": number} if number >= AGAINST_ROUNDS else {})
    assert opposition.judge(dict.fromkeys("abcd", 0.3)) == {}
    assert opposition.rounds == {}


def test_two_silos_have_no_majority_and_small_cosines_say_nothing() -> None:
    opposition = Opposition()
    for _ in range(2 * AGAINST_ROUNDS):
        assert opposition.judge({"a": 0.9, "b": -0.9}) == {}
        assert opposition.judge({"a": 0.9, "b": -0.09, "c": 0.8}) == {}


def test_a_silo_with_the_opposite_sign_is_noticed_and_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 12, 6, generator=generator) + torch.randn(12, 6, generator=generator)
    silos = [Silo(name, part, (part[:, 0] > 0).long()) for name, part in zip("abcde", x, strict=True)]
    federation, slowly = Federation("alike", silos), {"learning_rate": 1e-3}
    liar = Liar(federation, "fedsgd", -1.0)
    liar.rounds, rounds = set(range(1, 100)), AGAINST_ROUNDS + 3
    with pytest.warns(
        FedILCWarning, match="round 11: silo 'b' .for 10 rounds its updates have pointed against"
    ):
        result = run(federation, liar, rounds=rounds, **slowly)
    noticed = [record.get("against", {}) for record in result.history]
    assert noticed == [{}] * AGAINST_ROUNDS + [{"b": AGAINST_ROUNDS + n} for n in range(3)]
    liar.sets_aside = False  # and so without a warning
    run(federation, liar, rounds=5, out=tmp_path, **slowly)
    again = run(federation, liar, rounds=rounds, out=tmp_path, resume=True, **slowly)
    assert again.history == result.history
    monkeypatch.setattr(Opposition, "judge", lambda *_: {})
    assert_same(weights(run(federation, liar, rounds=rounds, **slowly).model), weights(result.model))
