"""Words of replies add up to the sums that the aggregators make of the replies themselves, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc import algorithms
from fedilc.config.experiment import Network
from fedilc.errors import ConfigError, ProtocolError
from fedilc.federation import Reply
from fedilc.federation.program import EVALUATE, MATCHED, STATISTICS, UPDATE, Program
from fedilc.federation.protocol import TotalReply
from fedilc.federation.rounding import round_reply
from fedilc.privacy.words import COUNTS, VALUES, SumForm, require_summable
from fedilc.runtimes.remote.run import RemoteRun
from rest import remote

SILOS = ("a", "b", "c", "d", "e")


def program_of(silos: Sequence[str] = SILOS, **options: Any) -> Program:
    return RemoteRun.of(remote(silos, secure=True, **options), Path()).specification.program


def replies_to(program: Program, step: str, seed: int) -> list[Reply]:
    """Answers of all sizes, with zeros, each silo with another number of examples."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for number, silo in enumerate(SILOS):
        reply = Reply(silo, step, 1)
        for group, answer in program.steps[step].answers.items():
            reply.tensors[group] = {}
            for name, like in answer.like.items():
                values = torch.randn(like.shape, generator=draw, dtype=like.dtype)
                scale = 10.0 ** torch.randint(-9, 3, like.shape, generator=draw)
                zero = torch.rand(like.shape, generator=draw) < 0.1
                reply.tensors[group][name] = torch.where(zero, 0.0, values * scale).to(like.dtype)
        known = {"loss": 0.1 + number, "examples": 10 + 7 * number, "distance": 1e-5 * number, "clipped": 0}
        known["state_round"] = 0
        reply.numbers = {name: known[name] for name in program.steps[step].numbers}
        for place, name in enumerate(program.steps[step].metrics):
            reply.metrics[name] = None if (number, place) == (0, 0) else 0.25 * number
        if reply.tensors:
            round_reply(reply, program)
        found.append(reply)
    return found


CASES = [
    ("fishr-inter-geo", {}, MATCHED),
    ("fishr-inter-geo", {}, STATISTICS),
    ("fishr-inter-geo", {"min_side": 4, "zeros": "strict"}, MATCHED),
    ("fedcurv", {}, MATCHED),
    ("fedavg", {}, UPDATE),
    ("fedavg", {"sum_unit": "2^-30", "sum_limit": "2^3"}, UPDATE),
    ("and-mask", {"silo_weights": None}, UPDATE),
    ("coral", {}, STATISTICS),
    ("scaffold", {}, UPDATE),
]


@pytest.mark.parametrize(("algorithm", "options", "step"), CASES)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(5)))
@settings(max_examples=8, deadline=None)
def test_totals_of_words_are_the_sums_of_the_replies(
    algorithm: str, options: dict[str, Any], step: str, seed: int, order: list[int]
) -> None:
    program = program_of(algorithm=algorithm, **options)
    form, replies = SumForm(program, program.steps[step], 5), replies_to(program, step, seed)
    counts, kept = None, np.zeros(0, bool)
    if COUNTS in form.parts:
        counts = np.zeros(form.words(COUNTS, None), np.uint32)
        for place in order:
            counts += form.counts(replies[place])
        kept = form.kept(counts)
    words = np.zeros(form.words(VALUES, kept), np.uint64)
    for place in order:
        words += form.values(replies[place], kept)
    like = {
        group: {name: torch.empty(one.shape, dtype=one.dtype) for name, one in answer.like.items()}
        for group, answer in program.steps[step].answers.items()
    }
    total = form.total(SILOS, like, words, counts, kept)
    for group, answer in program.steps[step].answers.items():
        rule, state = answer.aggregator, answer.aggregator.zero(like[group])
        weighted = answer.weighted and program.algorithm.silo_weights == "examples"
        for reply in replies:
            rule.accumulate(
                state, reply.tensors[group], weight=reply.numbers["examples"] if weighted else None
            )
        found, right = rule.finalize(total.sums[group]).value, rule.finalize(state).value
        for name in right:
            assert found[name].numpy().tobytes() == right[name].numpy().tobytes(), (group, name)
    if "loss" in total.numbers:
        weights = [
            r.numbers["examples"] if program.algorithm.silo_weights == "examples" else 1 for r in replies
        ]
        assert total.weight == sum(weights)
        losses = [weight * r.numbers["loss"] for weight, r in zip(weights, replies, strict=True)]
        assert total.numbers["loss"] == pytest.approx(sum(losses), rel=1e-12)
        assert total.numbers["examples"] == sum(r.numbers["examples"] for r in replies)


def test_sides_of_fewer_silos_than_min_side_are_not_in_the_words() -> None:
    """Whatever a silo alone with its sign answers there, the words are the same."""
    program = program_of(algorithm="geometric")
    form, replies = SumForm(program, program.steps[UPDATE], 5), replies_to(program, UPDATE, 0)
    for place, reply in enumerate(replies):
        for tensor in reply.tensors["gradient"].values():
            tensor.fill_(-1.0 if place < 2 else 1.0)
    kept = form.kept(sum(map(form.counts, replies), np.zeros(form.words(COUNTS, None), np.uint32)))
    assert kept.sum() == len(kept) // 2
    before = form.values(replies[0], kept)
    for tensor in replies[0].tensors["gradient"].values():
        tensor.mul_(1000)
    assert np.array_equal(form.values(replies[0], kept), before)


def evaluated(replies: list[Reply], program: Program) -> TotalReply:
    form = SumForm(program, program.steps[EVALUATE], 5)
    kept = form.kept(sum(map(form.counts, replies), np.zeros(form.words(COUNTS, None), np.uint32)))
    words = sum(
        (form.values(reply, kept) for reply in replies), np.zeros(form.words(VALUES, kept), np.uint64)
    )
    return form.total(SILOS, {}, words, None, kept)


def test_metrics_that_a_silo_lacks_are_left_out_of_the_mean() -> None:
    program = program_of()
    replies = replies_to(program, EVALUATE, 0)
    replies[1].metrics = {}
    total = evaluated(replies, program)
    first = next(iter(program.steps[EVALUATE].metrics))
    assert total.metrics[first] == (0.25 * (2 + 3 + 4), 3)
    others = [pair for name, pair in total.metrics.items() if name not in (first, "examples")]
    assert all(pair == (0.25 * (2 + 3 + 4), 4) for pair in others)


def test_a_metric_that_fewer_than_three_silos_have_is_not_summed() -> None:
    """The sum of one silo's AUROC is its AUROC."""
    program = program_of()
    replies = replies_to(program, EVALUATE, 0)
    first, second, *_ = program.steps[EVALUATE].metrics
    for reply in replies[:3]:
        reply.metrics[first] = None
    total = evaluated(replies, program)
    assert first not in total.metrics
    assert total.metrics[second][1] >= 4


def test_what_is_not_finite_is_not_sent() -> None:
    program = program_of(algorithm="fedsgd")
    form, reply = SumForm(program, program.steps[UPDATE], 5), replies_to(program, UPDATE, 0)[0]
    next(iter(reply.tensors["gradient"].values())).fill_(torch.inf)
    with pytest.raises(ProtocolError, match="was not sent"):
        form.values(reply, np.zeros(0, bool))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"algorithm": "group-dro"}, "silo_weights='group-dro'"),
        ({"algorithm": "afl"}, "silo_weights='afl'"),
        ({"algorithm": "q-ffl"}, "silo_weights='q-ffl'"),
        ({"algorithm": "fedavg", "silo_weights": dict.fromkeys(SILOS, 1.0)}, "one number per silo"),
        ({"algorithm": "fedsgd", "inter": "median"}, "inter='median'"),
        ({"algorithm": "fedsgd", "inter": "trimmed-mean"}, "inter='trimmed-mean'"),
        ({"algorithm": "fedsgd", "inter": "absolute-geometric"}, "inter='absolute-geometric'"),
        ({"algorithm": "geometric", "min_side": 2}, "min_side=2"),
        ({"algorithm": "geometric", "zeros": "authors"}, "zeros='authors'"),
        ({"sum_unit": "2^-60"}, "63 bits"),
        ({"outlier_factor": 8}, "outlier_factor=8"),
        ({"on_divergence": "exclude"}, "on_divergence="),
        ({"silos_per_round": 3}, "silos_per_round=3"),
    ],
)
def test_what_needs_each_silos_own_numbers_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        program_of(**options)


def test_a_run_with_secure_sums_drops_small_sides_unless_told_otherwise() -> None:
    assert program_of().inter.min_side == 3
    assert program_of(min_side=4).inter.min_side == 4
    require_summable(program_of(), 5)


def test_every_algorithm_of_the_catalogue_is_summed_or_refused_with_another_way() -> None:
    refused = {}
    for name in algorithms.names():
        try:
            data = {"loss": "regression"} if name == "ridge" else {}
            settings = remote(SILOS, secure=True, algorithm=name, data=data)
            if name in ("logistic", "ridge"):
                settings = settings.model_copy(update={"model": Network(name="linear")})
            RemoteRun.of(settings, Path())
        except ConfigError as error:
            refused[name] = str(error)
    assert refused.keys() == {"group-dro", "afl", "q-ffl", "trimmed-mean", "median"}
    assert all("; use " in sentence for sentence in refused.values())
