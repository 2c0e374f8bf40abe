"""Algorithms of the catalogue against plain re-derivations, and what every algorithm must hold to."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import NETWORK_ALGORITHMS
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Algorithm, Federation, LocalSteps, Silo, algorithms, train
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.gradients.local_steps import batches
from fedilc.training.callbacks import Callback, Run

Weights = dict[str, Tensor]
RATE = 0.3


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(8)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture
def federation(generator: torch.Generator) -> Federation:
    silos = []
    for number, examples in enumerate((7, 10, 12)):
        x, x_val = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (examples, 4))
        silos.append(Silo("abc"[number], x, (x[:, 0] > 0).long(), x_val, (x_val[:, 0] > 0).long()))
    return Federation("f", silos)


def weights_of(model: nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def loss_of(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    logits = torch.func.functional_call(network(), weights, (x,))[:, 0]
    return functional.binary_cross_entropy_with_logits(logits, y.double())


def gradient_of(weights: Weights, x: Tensor, y: Tensor) -> Weights:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    found = torch.autograd.grad(loss_of(leaves, x, y), list(leaves.values()))
    return dict(zip(weights, found, strict=True))


def plus(left: Weights, right: Weights, factor: float = 1.0) -> Weights:
    return {name: left[name] + factor * right[name] for name in left}


def mean_of(values: list[Weights], by: list[float]) -> Weights:
    total = sum(by)
    return {
        name: sum(
            (w * value[name] for value, w in zip(values, by, strict=True)), start=torch.zeros(()).double()
        )
        / total
        for name in values[0]
    }


def run(federation: Federation, algorithm: str | Algorithm, rounds: int = 1, **options: Any) -> Weights:
    options = {"learning_rate": 1.0, "outlier_factor": 0, **options}
    return weights_of(train(federation, network(), algorithm, rounds=rounds, **options).model)


def assert_same(found: Weights, right: Weights) -> None:
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)


def local(
    weights: Weights, silo: Silo, steps: LocalSteps, round_: int = 1, add: Weights | None = None
) -> Weights:
    """w after the silo's own steps of plain SGD."""
    now = weights
    for rows in batches(len(silo), steps, 0, round_, silo.name):
        rows = torch.arange(len(silo)) if rows is None else rows
        step = gradient_of(now, silo.x[rows], silo.y[rows])
        step = plus(step, plus(now, weights, -1.0), steps.proximal)
        step = step if add is None else plus(step, add)
        now = plus(now, step, -steps.learning_rate)
    return now


SHAPES = {
    "full batch": {"local_steps": 4},
    "batches": {"local_epochs": 2, "batch_size": 3},
    "steps over epochs": {"local_steps": 5, "batch_size": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "proximal"), [("fedavg", 0.0), ("fedprox", 0.4)])
def test_fedavg_and_fedprox_are_what_their_papers_say(
    name: str, proximal: float, shape: str, federation: Federation
) -> None:
    given = SHAPES[shape]
    entry = Algorithm(
        update=LocalSteps(
            steps=given.get("local_steps"),
            epochs=given.get("local_epochs"),
            batch_size=given.get("batch_size"),
            learning_rate=RATE,
            proximal=proximal,
        ),
        silo_weights="examples",
        optimizer="sgd",
    )
    assert entry.local is not None
    start = weights_of(network())
    ends = [local(start, silo, entry.local) for silo in federation.silos]
    right = mean_of(ends, [len(silo) for silo in federation.silos])
    assert_same(run(federation, entry), right)
    options = {"batch_size": "all", **given} if shape == "full batch" else given
    assert_same(run(federation, name, local_learning_rate=RATE, proximal=proximal or None, **options), right)


def test_two_rounds_of_scaffold_are_what_its_paper_says(federation: Federation) -> None:
    steps = LocalSteps(steps=3, batch_size=4, learning_rate=RATE)
    silos = federation.silos
    w = weights_of(network())
    common = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    own = {silo.name: common for silo in silos}
    for round_ in (1, 2):
        ends, moved = [], []
        for silo in silos:
            end = local(w, silo, steps, round_, plus(common, own[silo.name], -1.0))
            path = {name: (w[name] - end[name]) / (3 * RATE) for name in w}
            new = plus(plus(own[silo.name], common, -1.0), path)
            moved.append(plus(new, own[silo.name], -1.0))
            own[silo.name] = new
            ends.append(end)
        w = mean_of(ends, [1, 1, 1])
        common = plus(common, mean_of(moved, [1, 1, 1]))
    found = run(federation, "scaffold", 2, local_steps=3, batch_size=4, local_learning_rate=RATE)
    assert_same(found, w)


@pytest.mark.parametrize("name", algorithms.PAPER)
def test_one_full_batch_step_of_rate_one_is_the_gradient(name: str, federation: Federation) -> None:
    entry = algorithms.get(name)
    plain = Algorithm(intra=entry.intra, inter=entry.inter, optimizer="sgd")
    stepped = Algorithm(
        update=LocalSteps(steps=1, learning_rate=1.0), intra=entry.intra, inter=entry.inter, optimizer="sgd"
    )
    size = 3 if entry.intra != "whole" else None
    assert_same(
        run(federation, stepped, environment_size=size), run(federation, plain, environment_size=size)
    )


@pytest.mark.parametrize("penalty", ["fishr", "vrex", "coral", "iga", "irm"])
def test_one_full_batch_step_with_a_penalty_is_the_whole_gradient(
    penalty: str, federation: Federation
) -> None:
    plain = Algorithm(penalty=penalty, optimizer="sgd")
    stepped = Algorithm(update=LocalSteps(steps=1, learning_rate=1.0), penalty=penalty, optimizer="sgd")
    options = {"penalty_weight": 0.3}
    assert_same(run(federation, stepped, **options), run(federation, plain, **options))


def test_the_vector_of_a_penalty_is_held_fixed_during_local_steps(federation: Federation) -> None:
    """V-REx by hand: v_e = 2/E (risk_e - mean risk) at w, and steps on (1 + lambda E v_e) risk_e."""
    steps, weight = LocalSteps(steps=3, learning_rate=RATE), 0.5
    start = weights_of(network())
    risks = [loss_of(start, silo.x, silo.y) for silo in federation.silos]
    mean, ends = sum(risks) / 3, []
    for silo, risk in zip(federation.silos, risks, strict=True):
        factor = float(1 + weight * 3 * (2 / 3) * (risk - mean))
        now = start
        for _ in range(3):
            now = plus(now, gradient_of(now, silo.x, silo.y), -RATE * factor)
        ends.append(now)
    algorithm = Algorithm(update=steps, penalty="vrex", optimizer="sgd")
    assert_same(run(federation, algorithm, penalty_weight=weight), mean_of(ends, [1, 1, 1]))


def risks_at(weights: Weights, federation: Federation) -> dict[str, float]:
    return {silo.name: float(loss_of(weights, silo.x, silo.y)) for silo in federation.silos}


def test_group_dro_weighs_by_losses_before_the_step(federation: Federation) -> None:
    w, q = weights_of(network()), dict.fromkeys("abc", 1 / 3)
    for _ in range(2):
        risks = risks_at(w, federation)
        q = {name: q[name] * torch.tensor(0.5 * risks[name]).double().exp().item() for name in q}
        q = {name: value / sum(q.values()) for name, value in q.items()}
        gradients = [gradient_of(w, silo.x, silo.y) for silo in federation.silos]
        w = plus(w, mean_of(gradients, list(q.values())), -1.0)
    entry = Algorithm(silo_weights="group-dro", optimizer="sgd")
    assert_same(run(federation, entry, 2, weights_step=0.5), w)


def test_afl_weighs_by_what_the_rounds_before_taught(federation: Federation) -> None:
    w, q = weights_of(network()), torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(3):
        risks = torch.tensor(list(risks_at(w, federation).values()), dtype=torch.float64)
        gradients = [gradient_of(w, silo.x, silo.y) for silo in federation.silos]
        w = plus(w, mean_of(gradients, q.tolist()), -1.0)
        moved = q + 0.05 * risks
        q = moved - (moved.sum() - 1) / 3
        assert (q > 0).all(), "the projection is a shift as long as no weight reaches 0"
    entry = Algorithm(silo_weights="afl", optimizer="sgd")
    assert_same(run(federation, entry, 3, weights_step=0.05), w)


def test_q_ffl_weighs_by_powers_of_losses(federation: Federation) -> None:
    w = weights_of(network())
    powers = [risk**2 for risk in risks_at(w, federation).values()]
    gradients = [gradient_of(w, silo.x, silo.y) for silo in federation.silos]
    right = plus(w, mean_of(gradients, powers), -1.0)
    assert_same(run(federation, Algorithm(silo_weights="q-ffl", optimizer="sgd"), weights_power=2.0), right)


def test_the_servers_rate_follows_its_schedule(federation: Federation) -> None:
    entry = Algorithm(optimizer="sgd")
    options = {"learning_rate_schedule": "step", "decay_rounds": 1, "decay_factor": 0.5, "warmup_rounds": 2}
    w = weights_of(network())
    for factor in (0.5, 1.0, 1.0, 0.5):
        gradients = [gradient_of(w, silo.x, silo.y) for silo in federation.silos]
        w = plus(w, mean_of(gradients, [1, 1, 1]), -0.2 * factor)
    assert_same(run(federation, entry, 4, learning_rate=0.2, **options), w)


def test_yogi_is_what_its_paper_says(federation: Federation) -> None:
    w = weights_of(network())
    first = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    second = {name: torch.full_like(tensor, 1e-6) for name, tensor in w.items()}
    for _ in range(3):
        g = mean_of([gradient_of(w, silo.x, silo.y) for silo in federation.silos], [1, 1, 1])
        for name in w:
            first[name] = 0.9 * first[name] + 0.1 * g[name]
            second[name] = second[name] - 0.01 * g[name] ** 2 * torch.sign(second[name] - g[name] ** 2)
            w[name] = w[name] - 0.05 * first[name] / (second[name].sqrt() + 1e-3)
    assert_same(run(federation, Algorithm(optimizer="yogi"), 3, learning_rate=0.05), w)


def test_fedadam_is_what_its_paper_says(federation: Federation) -> None:
    """Reddi et al. 2021, algorithm 2: no bias correction, v begins as tau^2, tau is outside the root."""
    w = weights_of(network())
    first = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    second = {name: torch.full_like(tensor, 1e-6) for name, tensor in w.items()}
    for _ in range(4):
        g = mean_of([gradient_of(w, silo.x, silo.y) for silo in federation.silos], [1, 1, 1])
        for name in w:
            first[name] = 0.9 * first[name] + 0.1 * g[name]
            second[name] = 0.99 * second[name] + 0.01 * g[name] ** 2
            w[name] = w[name] - 0.05 * first[name] / (second[name].sqrt() + 1e-3)
    assert_same(run(federation, Algorithm(optimizer="fedadam"), 4, learning_rate=0.05), w)
    entry = algorithms.get("fedadam")
    assert (entry.optimizer, entry.optimizer_options) == ("fedadam", {})


def test_layeradam_is_adam_with_one_second_moment_per_tensor(federation: Federation) -> None:
    w = weights_of(network())
    first = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    second = dict.fromkeys(w, 0.0)
    for t in range(1, 5):
        g = mean_of([gradient_of(w, silo.x, silo.y) for silo in federation.silos], [1, 1, 1])
        for name in w:
            first[name] = 0.9 * first[name] + 0.1 * g[name]
            second[name] = (
                0.999 * second[name]
                + 0.001 * sum(v * v for v in g[name].flatten().tolist()) / g[name].numel()
            )
            scale = (second[name] / (1 - 0.999**t)) ** 0.5 + 1e-8
            w[name] = w[name] - 0.05 * first[name] / (1 - 0.9**t) / scale
    assert_same(run(federation, Algorithm(optimizer="layeradam"), 4, learning_rate=0.05), w)


def test_agreed_geometric_has_its_agreement_unless_another_is_given(federation: Federation) -> None:
    entry = algorithms.get("agreed-geometric")
    parts = Algorithm(inter="geometric", optimizer="layeradam")
    own = run(federation, entry, 3, learning_rate=0.05)
    assert_same(own, run(federation, parts, 3, learning_rate=0.05, agreement=0.5))
    none = run(federation, entry, 3, learning_rate=0.05, agreement=0.0)
    assert_same(none, run(federation, parts, 3, learning_rate=0.05))
    assert any(not torch.equal(own[name], none[name]) for name in own)
    assert entry.built({"agreement": 0.2}).describe()["inter"]["agreement"] == 0.2


STATEFUL = {
    "local steps": Algorithm(update=LocalSteps(epochs=1, batch_size=3), optimizer="sgd"),
    "local adam": Algorithm(update=LocalSteps(steps=3, optimizer="adam", learning_rate=0.01)),
    "scaffold": algorithms.get("scaffold"),
    "group-dro": Algorithm(silo_weights="group-dro"),
    "afl": Algorithm(silo_weights="afl"),
    "momentum": Algorithm(optimizer="sgd", optimizer_options={"momentum": 0.9}),
    "adamw": Algorithm(optimizer="adamw"),
    "fedadam": Algorithm(optimizer="fedadam"),
    "yogi": Algorithm(optimizer="yogi"),
    "agreed-geometric": algorithms.get("agreed-geometric"),
    "cosine": Algorithm(optimizer="sgd"),
    "average of all rounds": algorithms.get("fishr-inter-geo"),
    "average of the last rounds": algorithms.get("scaffold"),
    "fishr with local steps": algorithms.get("fishr-inter-geo-local"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(
    name: str, federation: Federation, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"learning_rate": 0.05}
    if STATEFUL[name].local is not None:
        options["batch_size"] = 3
    if name == "cosine":
        options |= {"learning_rate_schedule": "cosine", "warmup_rounds": 1}
    if name.startswith("average"):
        options |= {"average": "ema"} if "all" in name else {"average": "last", "average_share": 0.75}
    model = network()

    def trained(folder: Path, stop: int | None = None, resume: bool = False) -> tuple[Weights, list[Any]]:
        class StopError(Exception):
            pass

        def cut(record: dict[str, Any]) -> None:
            if record["round"] == stop:
                raise StopError

        result = None
        try:
            result = train(
                federation,
                model,
                STATEFUL[name],
                rounds=4,
                out=folder,
                resume=resume,
                callbacks=[cut],
                **options,
            )
        except StopError:
            return {}, []
        return weights_of(result.model), result.history

    whole = trained(tmp_path / "whole")
    trained(tmp_path / "cut", stop=3)
    again = trained(tmp_path / "cut", resume=True)
    assert again[1] == whole[1]
    assert all(torch.equal(again[0][key], value) for key, value in whole[0].items())


def test_a_silo_that_lost_its_state_is_named_and_begins_again(federation: Federation, tmp_path: Path) -> None:
    options: dict[str, Any] = {"learning_rate": 1.0, "out": tmp_path}
    train(federation, network(), "scaffold", rounds=2, **options)
    for file in (tmp_path / "silo-state").glob("b*"):
        file.unlink()
    said = r"silo 'b' \(it used no state instead of its state of round 2\): all silos start again"
    with pytest.warns(FedILCWarning, match=said):
        train(federation, network(), "scaffold", rounds=3, resume=True, **options)


def test_after_a_lost_state_scaffold_still_finds_where_the_mean_gradient_is_zero(
    federation: Federation, tmp_path: Path
) -> None:
    """A convex loss and full batches: the mean of control variates must be that of the silos again."""
    line = nn.Linear(4, 1).double()
    options: dict[str, Any] = {
        "learning_rate": 1.0,
        "local_steps": 5,
        "batch_size": 10**6,
        "local_learning_rate": 0.2,
        "out": tmp_path,
        "outlier_factor": 0,
        "evaluate_every": 600,
    }
    for silo in federation.silos:
        silo.y = torch.randint(0, 2, silo.y.shape, generator=torch.Generator().manual_seed(len(silo)))
    train(federation, line, "scaffold", rounds=5, **options)
    for file in (tmp_path / "silo-state").glob("b*"):
        file.unlink()
    with pytest.warns(FedILCWarning, match="all silos start again"):
        result = train(federation, line, "scaffold", rounds=600, resume=True, **options)
    losses = [
        functional.binary_cross_entropy_with_logits(result.model(silo.x)[:, 0], silo.y.double())
        for silo in federation.silos
    ]
    gradient = torch.autograd.grad(sum(losses) / 3, list(result.model.parameters()))
    assert max(float(part.abs().max()) for part in gradient) < 1e-6


def test_local_steps_leave_no_trace_in_the_model_of_the_next_silo(federation: Federation) -> None:
    entry = Algorithm(update=LocalSteps(steps=2), optimizer="sgd")
    alone = [run(Federation("one", [copy.deepcopy(silo)]), entry) for silo in federation.silos]
    assert_same(run(federation, entry), mean_of(alone, [1, 1, 1]))


@pytest.mark.parametrize("name", NETWORK_ALGORITHMS)
def test_every_entry_trains_and_lowers_the_loss(name: str, federation: Federation) -> None:
    entry = algorithms.get(name)
    options: dict[str, Any] = {"learning_rate": 0.02, "weight_decay": 0.0} | dict(entry.defaults)
    size = 3 if entry.intra != "whole" else None
    result = train(
        federation,
        network(),
        name,
        rounds=12,
        penalty_weight=0.01,
        environment_size=size,
        outlier_factor=0,
        **options,
    )
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@pytest.mark.parametrize("average", ["ema", "last"])
@pytest.mark.parametrize("name", NETWORK_ALGORITHMS)
def test_the_average_of_any_entry_is_evaluated_and_returned_and_changes_no_round(
    name: str, average: str, federation: Federation
) -> None:
    entry = algorithms.get(name)
    options: dict[str, Any] = {"learning_rate": 0.02, "weight_decay": 0.0} | dict(entry.defaults)
    options |= {"rounds": 4, "outlier_factor": 0, "environment_size": 3 if entry.intra != "whole" else None}
    path: list[Weights] = []

    class Follow(Callback):
        def on_round(self, run: Run, _record: Any) -> None:
            path.append({key: value.clone() for key, value in run.weights.items()})

    plain = train(federation, network(), name, callbacks=[Follow()], **options)
    shares = {"average_decay": 0.7} if average == "ema" else {"average_share": 0.5}
    by = [0.7**3, 0.7**2, 0.7, 1.0] if average == "ema" else [0.0, 0.0, 1.0, 1.0]
    result = train(federation, network(), name, average=average, **shares, **options)
    assert_same(weights_of(result.model), mean_of(path, by))
    losses = [[record["train_loss"] for record in found.history] for found in (plain, result)]
    assert losses[0] == losses[1]
    measured = [loss_of(weights_of(result.model), s.x_val, s.y_val) for s in federation.silos]
    assert result.history[-1]["validation_loss"] == pytest.approx(float(sum(measured)) / 3, rel=1e-6)


def test_newtons_method_ends_at_the_minimum_and_is_not_averaged(federation: Federation) -> None:
    options: dict[str, Any] = {"rounds": 20, **algorithms.get("logistic").defaults}
    model = nn.Linear(4, 1).double()
    plain = train(federation, model, "logistic", **options)
    with pytest.warns(FedILCWarning, match="average=ema has no effect in logistic"):
        found = train(federation, model, "logistic", average="ema", **options)
    assert all(torch.equal(weights_of(found.model)[k], v) for k, v in weights_of(plain.model).items())


def test_clipping_is_a_wrapper_around_any_aggregation(federation: Federation) -> None:
    for inter in ("mean", "geometric"):
        entry = Algorithm(inter=inter, penalty="fishr", optimizer="sgd")
        options: dict[str, Any] = {"learning_rate": 1.0, "penalty_weight": 100.0, "max_norm": 1e-3}
        result = train(federation, network(), entry, rounds=1, **options)
        silos = result.history[0]["silos"].values()
        assert all(found["clipped_from"] > 1e-3 for found in silos)
        step = plus(weights_of(network()), weights_of(result.model), -1.0)
        length = sum(float(part.square().sum()) for part in step.values()) ** 0.5
        most = 1e-3 if inter == "mean" else 1e-3 + 100 * 3 * 1e-3
        assert 0 < length <= most * (1 + 1e-9), "neither gradient nor penalty is longer than the bound"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LocalSteps(steps=1, epochs=1), "a number of steps or of epochs"),
        (lambda: LocalSteps(steps=0), "local steps: steps=0 is not valid: input should be greater than 0"),
        (lambda: LocalSteps(learning_rate=0), "learning_rate=0 is not valid: input should be greater than 0"),
        (lambda: Algorithm(update="gradients"), "update='gradients' is unknown"),
        (lambda: Algorithm(silo_weights="afl", inter="geometric"), "needs a mean across silos"),
        (lambda: algorithms.get("fedavgg"), "did you mean 'fedavg'"),
        (lambda: algorithms.register("fedavg", Algorithm()), "there is already an algorithm 'fedavg'"),
    ],
)
def test_parts_that_make_no_sense_are_refused_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_inter_replaces_how_silos_become_one_and_trim_is_its_option(
    federation: Federation,
) -> None:
    start = weights_of(network())
    gradients = [gradient_of(start, silo.x, silo.y) for silo in federation.silos]
    middle = {name: torch.stack([g[name] for g in gradients]).median(0).values for name in start}
    right = plus(start, middle, -1.0)
    options: dict[str, Any] = {"optimizer": "sgd"}
    assert_same(run(federation, "geometric", inter="median", **options), right)
    assert_same(run(federation, "median", **options), right)
    assert_same(run(federation, "trimmed-mean", trim=0.4, **options), right)
    ends = [local(start, silo, LocalSteps(steps=2, learning_rate=RATE)) for silo in federation.silos]
    middle = {name: torch.stack([end[name] for end in ends]).median(0).values for name in start}
    steps = {"local_steps": 2, "batch_size": 10**6, "local_learning_rate": RATE}
    assert_same(run(federation, "fedavg", inter="median", **steps), middle)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("fedsgd", {"inter": "medain"}, "aggregation 'medain' is unknown; did you mean 'median'"),
        ("fedsgd", {"inter": "median", "silo_weights": "examples"}, "needs a mean across silos"),
        ("afl", {"inter": "trimmed-mean"}, "silo_weights='afl' needs a mean across silos"),
        (
            "fedsgd",
            {"inter": "median", "silos_per_round": 2},
            "a round asks only 2 silos; it needs at least 3",
        ),
        ("fedsgd", {"inter": "trimmed-mean", "trim": 0.5}, "trim"),
        (Algorithm(intra="median"), {}, "keep the gradient of every environment"),
    ],
)
def test_a_robust_rule_is_refused_if_it_cannot_work(
    name: str | Algorithm, given: dict[str, Any], sentence: str, federation: Federation
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(federation, name, **given)


def test_an_optimiser_or_an_option_that_is_unknown_is_refused(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="optimizer 'adm' is unknown; did you mean 'adam'"):
        run(federation, "fedsgd", optimizer="adm")
    with pytest.raises(ConfigError, match="optimizer 'sgd' has no option 'momentun'"):
        run(federation, "fedavg", optimizer_options={"momentun": 0.9})
    with pytest.raises(ConfigError, match="penalty 'fisher' is unknown; did you mean 'fishr'"):
        run(federation, "fedsgd", penalty="fisher")


def test_a_number_as_penalty_is_its_weight_with_a_note(federation: Federation) -> None:
    with pytest.warns(FedILCWarning, match="a number for the penalty is now called penalty_weight"):
        old = run(federation, "fedcurv", penalty=0.5)
    assert_same(old, run(federation, "fedcurv", penalty_weight=0.5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_size": 4}, "batch_size=4 has no effect in fedsgd"),
        ({"proximal": 0.1}, "proximal=0.1 has no effect"),
        ({"weights_step": 0.5}, "weights_step=0.5 has no effect"),
        ({"decay_rounds": 3}, "decay_rounds=3 has no effect"),
        ({"trim": 0.3}, "trim=0.3 has no effect"),
    ],
)
def test_a_setting_that_no_part_takes_is_said_to_change_nothing(
    given: dict[str, Any], said: str, federation: Federation
) -> None:
    with pytest.warns(FedILCWarning, match=said):
        run(federation, "fedsgd", **given)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("group-dro", {"weights_step": 2000.0, "silos_per_round": 1}),
        ("q-ffl", {"weights_power": 5000.0}),
        ("afl", {"weights_step": 1e6}),
    ],
)
def test_extreme_adaptive_weights_stay_finite(
    name: str, options: dict[str, Any], federation: Federation
) -> None:
    found = run(federation, name, 6, learning_rate=0.01, **options)
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())


def test_an_option_that_fails_only_in_the_step_is_refused_before_the_first_round(
    federation: Federation,
) -> None:
    with pytest.raises(ConfigError, match="optimizer 'adam' cannot be used with"):
        run(federation, "fedsgd", optimizer_options={"capturable": True})
    with pytest.raises(ConfigError, match="optimizer 'foo' is unknown"):
        run(federation, "fedavg", local_optimizer="foo")


def test_a_last_batch_of_one_example_ends_no_run_with_coral(federation: Federation) -> None:
    run(federation, "coral", 2, learning_rate=0.01, local_epochs=1, batch_size=3, local_learning_rate=0.01)
