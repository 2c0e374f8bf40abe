"""Every random choice has a seed of its own, the same everywhere."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from fedilc import Federation, Silo, train
from fedilc.seeds import numpy_generator, seed_for, torch_generator


def test_a_seed_is_the_hash_of_run_and_purpose() -> None:
    digest = hashlib.sha256(b"7\x1f3\x1fclinic\x1fenvironments").digest()
    assert seed_for(7, 3, "clinic", "environments") == int.from_bytes(digest[:8], "little") // 2


def test_a_seed_never_changes_between_machines_and_versions() -> None:
    assert seed_for(0, "model") == 2086278196944925017


@pytest.mark.parametrize(
    "other",
    [
        (1, 3, "a", "shuffle"),
        (0, 4, "a", "shuffle"),
        (0, 3, "b", "shuffle"),
        (0, 3, "a", "split"),
        (0, 3, "a"),
    ],
    ids=["run", "round", "silo", "use", "shorter"],
)
def test_another_run_round_silo_or_use_has_another_seed(other: tuple[int | str, ...]) -> None:
    assert seed_for(0, 3, "a", "shuffle") != seed_for(*other)


def test_neighbouring_parts_do_not_run_together() -> None:
    assert seed_for(0, "ab", "c") != seed_for(0, "a", "bc")
    assert seed_for(1, 23) != seed_for(12, 3)


def test_ten_thousand_seeds_all_differ_and_fit_what_torch_and_numpy_take() -> None:
    seeds = {seed_for(run, purpose) for run in range(100) for purpose in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_repeat_for_one_purpose_and_differ_between_purposes() -> None:
    torch_draws = [torch.rand(8, generator=torch_generator(0, use)).tolist() for use in ("a", "a", "b")]
    numpy_draws = [numpy_generator(0, use).random(8).tolist() for use in ("a", "a", "b")]
    for first, again, other in (torch_draws, numpy_draws):
        assert first == again
        assert first != other


def test_generators_leave_the_global_random_states_alone() -> None:
    before_torch = torch.get_rng_state()
    numpy_state = np.random.get_state
    before_numpy = numpy_state()[1]
    torch.rand(3, generator=torch_generator(0, "a"))
    numpy_generator(0, "a").random(3)
    assert torch.equal(torch.get_rng_state(), before_torch)
    assert np.array_equal(numpy_state()[1], before_numpy)


@pytest.mark.parametrize(
    ("algorithm", "options", "same"),
    [
        ("fedavg", {"batch_size": 3}, False),
        ("scaffold", {"batch_size": 3}, False),
        ("fedsgd", {"balance": "oversample"}, False),
        ("fedsgd", {}, True),
        ("fishr-inter-geo", {}, True),
        ("fedavg", {"batch_size": 12}, True),
        ("fedavg", {"batch_size": "all"}, True),
    ],
)
def test_renamed_silos_draw_other_batches_and_have_the_same_full_batch_gradients(
    algorithm: str, options: dict[str, object], same: bool
) -> None:
    def trained(*names: str) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(0)
        x = [torch.randn(12, 2, generator=random) for _ in names]
        y = (torch.arange(12) < 4).long()
        silos = [Silo(name, values, y) for name, values in zip(names, x, strict=True)]
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        result = train(Federation("f", silos), model, algorithm, rounds=2, learning_rate=0.5, **options)
        return list(result.model.parameters())

    pairs = zip(trained("a", "b"), trained("north", "south"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs) is same
