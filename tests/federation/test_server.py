"""The round loop over runtimes that lose, reorder and damage replies."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from networks import NETWORK_ALGORITHMS, mlp

from fedilc import Federation, Silo, algorithms, train
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.errors import FedILCError, NonFiniteError, ProtocolError, SilosLostError
from fedilc.evaluation import measure
from fedilc.federation import Program, Reply, Request
from fedilc.gradients import Loss, ModelRunner
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.local import LocalRuntime


def federation_of(generator: torch.Generator, names: str = "abcde") -> Federation:
    silos = []
    for e, name in enumerate(names):
        x, x_val = (torch.randn(n, 6, generator=generator) + 0.3 * e for n in (10, 4))
        silos.append(Silo(name, x, (x[:, 0] > 0.3 * e).long(), x_val, (x_val[:, 0] > 0.3 * e).long()))
    return Federation("f", silos)


class Wrapped(Runtime):
    """A local runtime whose replies pass through `change`; it has nothing but `ask`."""

    def __init__(self, federation: Federation, algorithm: str = "fishr-inter-geo", **limits: int) -> None:
        options = Options(rounds=3, learning_rate=0.05, environment_size=4)
        loss, model = Loss(federation.loss), mlp()
        program = Program.of(find_algorithm(algorithm)[1], federation.loss, options, model)
        runner = ModelRunner(model, loss)
        self.inner = LocalRuntime(federation, runner, program, lambda a, b: measure(loss, a, b), **limits)
        self.requests: list[Request] = []

    def ask(self, request: Request) -> Iterator[Reply]:
        self.requests.append(request)
        yield from self.change(request, self.inner.ask(request))

    def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
        yield from replies


class Reversed(Wrapped):
    def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
        yield from reversed(list(replies))


class Duplicating(Wrapped):
    def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            yield reply
            yield reply


class Losing(Wrapped):
    """Loses one silo in one step of the second round."""

    step = "matched-update"
    lost = ("b",)

    def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            gone = request.round == 2 and request.step == self.step and reply.silo in self.lost
            if not gone:
                yield reply


def run(
    federation: Federation, runtime: Runtime | None, algorithm: str = "fishr-inter-geo", **options: object
):
    return train(
        federation,
        mlp(),
        algorithm,
        rounds=3,
        learning_rate=0.05,
        penalty_weight=2.0,
        runtime=runtime,
        environment_size=4,
        **options,
    )


@pytest.mark.parametrize("kind", [Wrapped, Reversed, Duplicating])
def test_order_and_duplicates_do_not_change_a_bit(kind: type[Wrapped], generator: torch.Generator) -> None:
    federation = federation_of(generator)
    plain = run(federation, None)
    other = run(federation, kind(federation))
    assert other.history == plain.history
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True)
    )


@pytest.mark.parametrize("algorithm", NETWORK_ALGORITHMS)
def test_replies_that_are_not_kept_between_steps_give_the_same_bits(
    algorithm: str, generator: torch.Generator
) -> None:
    federation = federation_of(generator)
    keeping, forgetting = Wrapped(federation, algorithm), Wrapped(federation, algorithm, kept_bytes=0)
    first, second = run(federation, keeping, algorithm), run(federation, forgetting, algorithm)
    assert first.history == second.history


@pytest.mark.parametrize("step", ["statistics", "matched-update"])
def test_a_silo_lost_in_a_round_is_left_out_of_both_steps_and_comes_back(
    step: str, generator: torch.Generator
) -> None:
    federation = federation_of(generator)
    losing = Losing(federation)
    losing.step = step
    result = run(federation, losing, min_silos=3)
    assert [sorted(record["silos"]) for record in result.history] == [
        list("abcde"),
        list("acde"),
        list("abcde"),
    ]
    asked = [(r.step, "".join(r.silos)) for r in losing.requests if r.round == 2]
    assert asked[-3:] == [("statistics", "acde"), ("matched-update", "acde"), ("evaluate", "acde")]
    final = [r for r in losing.requests if r.round == 2 and r.step == "matched-update"][-1]
    assert set(final.tensors) == {"variance"}


def test_a_round_without_one_silo_equals_a_federation_without_it(generator: torch.Generator) -> None:
    federation = federation_of(generator)

    class AlwaysLosing(Losing):
        def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
            yield from (reply for reply in replies if reply.silo != "b")

    left = Federation("f", [silo for silo in federation.silos if silo.name != "b"])
    without = run(left, None)
    lost = run(federation, AlwaysLosing(federation), min_silos=4)
    assert all(
        torch.equal(a, b) for a, b in zip(without.model.parameters(), lost.model.parameters(), strict=True)
    )


def test_too_few_silos_end_the_run_with_a_sentence(generator: torch.Generator) -> None:
    federation = federation_of(generator)
    with pytest.raises(SilosLostError, match="lost b, which leaves 4 of 5 silos, fewer than min_silos=5"):
        run(federation, Losing(federation))


def damaged(kind: str) -> type[Wrapped]:
    class Damaged(Wrapped):
        def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
            for reply in replies:
                if reply.silo == "c" and request.step == "matched-update":
                    gradient = reply.tensors["gradient"]
                    if kind == "name":
                        gradient["other"] = gradient.pop("1.weight")
                    elif kind == "shape":
                        gradient["1.weight"] = gradient["1.weight"][:1]
                    elif kind == "dtype":
                        gradient["1.weight"] = gradient["1.weight"].double()
                    elif kind == "step":
                        reply.step = "statistics"
                    elif kind == "round":
                        reply.round = 99
                    elif kind == "stranger":
                        reply.silo = "zoe"
                    elif kind == "nan":
                        gradient["1.weight"][0, 0] = float("nan")
                    elif kind == "penalty":
                        del reply.tensors["penalty"]
                yield reply

    return Damaged


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("name", ProtocolError, "silo 'c' sent gradient tensors"),
        ("shape", ProtocolError, r"silo 'c' sent gradient '1.weight' as torch.float32 of shape \(1, 6\)"),
        ("dtype", ProtocolError, "torch.float64"),
        ("step", ProtocolError, "replied to step 'statistics'"),
        ("round", ProtocolError, "round 99"),
        ("stranger", ProtocolError, "'zoe' replied without being asked"),
        ("nan", NonFiniteError, "silo 'c' sent a NaN or infinite value for '1.weight'"),
        ("penalty", ProtocolError, r"silo 'c' sent tensors \['gradient'\], not"),
    ],
)
def test_a_damaged_reply_is_refused_and_the_silo_named(
    kind: str, error: type[FedILCError], sentence: str, generator: torch.Generator
) -> None:
    federation = federation_of(generator)
    with pytest.raises(error, match=sentence):
        run(federation, damaged(kind)(federation))


def test_statistics_of_another_shape_are_refused(generator: torch.Generator) -> None:
    federation = federation_of(generator)

    class Odd(Wrapped):
        def change(self, request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
            for reply in replies:
                if request.step == "statistics" and reply.silo == "d":
                    reply.tensors["variance"] = {"variance": torch.zeros(2)}
                yield reply

    with pytest.raises(ProtocolError, match="silo 'd' sent variance 'variance' as"):
        run(federation, Odd(federation))


def test_what_travels_is_what_the_algorithm_needs(generator: torch.Generator) -> None:
    federation = federation_of(generator)
    for name in algorithms.PAPER:
        entry = algorithms.get(name)
        runtime = Wrapped(federation, name)
        seen: dict[str, set[str]] = {}

        def note(request: Request, replies: Iterator[Reply], seen: dict = seen) -> Iterator[Reply]:
            for reply in replies:
                seen.setdefault(request.step, set()).update(reply.tensors)
                yield reply

        runtime.change = note
        run(federation, runtime, name)
        apart = entry.penalty and entry.inter == "geometric"
        update = "matched-update" if entry.penalty else "update"
        assert seen[update] == ({"gradient", "penalty"} if apart else {"gradient"})
        assert ("statistics" in seen) == bool(entry.penalty)


def test_the_server_forgets_each_reply_before_it_takes_the_next(generator: torch.Generator) -> None:
    federation = federation_of(generator)
    runtime = Wrapped(federation)
    alive: list[weakref.ref[torch.Tensor]] = []

    def watched(_request: Request, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in reversed(list(replies)):
            tensors = [tensor.clone() for group in reply.tensors.values() for tensor in group.values()]
            names = [(kind, name) for kind, group in reply.tensors.items() for name in group]
            for (kind, name), tensor in zip(names, tensors, strict=True):
                reply.tensors[kind][name] = tensor
            alive[:] = [weakref.ref(tensor) for tensor in tensors]
            del tensors
            if names:
                del tensor
            yield reply
            reply.tensors.clear()
            gc.collect()
            assert not any(one() is not None for one in alive), "a reply waits for another"

    runtime.change = watched
    assert run(federation, runtime).history == run(federation, None).history


def test_the_penalty_of_a_record_is_a_mean_or_a_sum_over_silos(generator: torch.Generator) -> None:
    federation = federation_of(generator)
    mean, total = (run(federation, None, fishr_reduction=way).history[0] for way in ("mean", "sum"))
    assert total["penalty"] == mean["penalty"] * len(federation.silos) > 0
    assert total["penalty_weight"] == 2.0
    assert "penalty" not in run(federation, None, "fedsgd").history[0]
