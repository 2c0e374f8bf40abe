"""The weighted geometric mean against 60-digit arithmetic, and its required properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stacks import both_ways, every_exponent
from stacks import stacks as any_stacks
from wgm_oracle import relative_error, wgm_oracle

from fedilc import weighted_geometric_mean
from fedilc.aggregation import WeightedGeometricMean
from fedilc.errors import ConfigError, NonFiniteError

ZEROS = ("ignore", "strict", "authors")
SMALLEST, LARGEST = 1e-45, 3e38
LOG_UNIT = 2.0**-36  # to which logarithms are rounded: what cancels keeps this error of the larger side

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
stacks = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.integers(1, 4)),
    elements=float32s,
)


def assert_equals_oracle(
    stack: torch.Tensor, zeros: str, agreement: float = 0.0, tolerance: float = 1e-6
) -> None:
    found = weighted_geometric_mean(stack, zeros=zeros, agreement=agreement)
    for column in range(stack.shape[1]):
        expected = wgm_oracle([float(v) for v in stack[:, column]], zeros, agreement)
        assert relative_error(float(found[column]), expected) < tolerance


@given(stacks, st.sampled_from(ZEROS), st.sampled_from([0.0, 0.3, 1.0]))
def test_it_equals_the_oracle_on_any_float32(stack: np.ndarray, zeros: str, agreement: float) -> None:
    values = torch.from_numpy(stack)
    with_cancellation = weighted_geometric_mean(values, zeros=zeros, agreement=agreement)
    for column in range(values.shape[1]):
        numbers = [float(v) for v in values[:, column]]
        expected = wgm_oracle(numbers, zeros, agreement)
        largest = max(abs(v) for v in [*numbers, 1e-10 if zeros == "authors" else 0.0])
        allowed = 1e-6 * abs(float(expected)) + LOG_UNIT * largest + 2e-45
        assert abs(float(with_cancellation[column]) - float(expected)) <= allowed


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("environments", [1, 2, 5, 50])
def test_mixed_magnitudes_from_1e_40_to_1e30_stay_exact(
    zeros: str, environments: int, generator: torch.Generator
) -> None:
    exponents = torch.rand(environments, 40, generator=generator, dtype=torch.float64) * 70 - 40
    signs = torch.randint(0, 2, exponents.shape, generator=generator) * 2 - 1
    stack = (10**exponents * signs).float()
    stack[torch.rand(stack.shape, generator=generator) < 0.1] = 0.0
    assert_equals_oracle(stack, zeros)


@pytest.mark.parametrize("size", [SMALLEST, 1e-40, 1e-38, 1.0, 1e30, LARGEST])
@pytest.mark.parametrize("environments", [1, 3, 1000])
def test_equal_values_give_that_value(size: float, environments: int) -> None:
    value = torch.tensor([size, -size])
    found = weighted_geometric_mean(value.expand(environments, 2))
    assert torch.equal(found, value)


def test_a_hundred_thousand_environments_neither_underflow_nor_overflow(generator: torch.Generator) -> None:
    tiny = torch.rand(100_000, 1, generator=generator) * 1e-38
    huge = torch.rand(100_000, 1, generator=generator) * 1e38
    mixed = torch.randn(100_000, 1, generator=generator)
    found = weighted_geometric_mean(torch.cat([tiny, huge, mixed], 1))
    for column, values in enumerate((tiny, huge, mixed)):
        wide = values.double().squeeze(1)
        expected = 0.0
        for sign in (1, -1):
            side = wide[wide * sign > 0].abs()
            if len(side):
                logs = math.fsum(side.log().tolist())
                expected += sign * len(side) / len(wide) * math.exp(logs / len(side))
        assert float(found[column]) == pytest.approx(expected, rel=1e-6)


def test_a_hundred_thousand_environments_equal_the_oracle(generator: torch.Generator) -> None:
    stack = torch.randn(100_000, 1, generator=generator) * 1e-30
    stack[::7] = 0.0
    for zeros in ("ignore", "authors"):
        assert_equals_oracle(stack, zeros, tolerance=1e-5)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize(
    "column",
    [
        [0.0, 0.0, 0.0],
        [2.0, 8.0, 4.0],
        [-2.0, -8.0, -4.0],
        [5.0],
        [-5.0],
        [0.0],
        [1.0, 0.0],
        [-1.0, 0.0, 3.0],
    ],
)
def test_edge_columns_equal_the_oracle(column: list[float], zeros: str) -> None:
    assert_equals_oracle(torch.tensor(column).unsqueeze(1), zeros)


@given(stacks, st.sampled_from(["ignore", "strict"]), st.sampled_from([0.0, 0.5]))
def test_it_is_odd_to_the_last_bit(stack: np.ndarray, zeros: str, agreement: float) -> None:
    values = torch.from_numpy(stack)
    right = weighted_geometric_mean(-values, zeros=zeros, agreement=agreement)
    assert torch.equal(right, -weighted_geometric_mean(values, zeros=zeros, agreement=agreement))


@given(stacks, st.sampled_from(["ignore", "strict"]))
def test_it_never_exceeds_the_largest_magnitude(stack: np.ndarray, zeros: str) -> None:
    for values in (torch.from_numpy(stack), torch.from_numpy(stack).double()):
        assert bool((weighted_geometric_mean(values, zeros=zeros).abs() <= values.abs().amax(0)).all())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_dim_chooses_the_axis_of_the_values(dim: int, generator: torch.Generator) -> None:
    values = torch.randn(3, 4, 5, generator=generator)
    expected = weighted_geometric_mean(values.movedim(dim, 0).contiguous())
    assert torch.equal(weighted_geometric_mean(values, dim=dim), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    found = weighted_geometric_mean(torch.tensor([[1.0], [4.0]], dtype=dtype))
    assert found.dtype == dtype
    assert float(found) == 2.0


def test_a_list_of_tensors_is_stacked() -> None:
    assert float(weighted_geometric_mean([torch.tensor([2.0]), torch.tensor([8.0])])) == pytest.approx(4.0)


def test_a_side_with_too_few_members_is_dropped() -> None:
    column = torch.tensor([2.0, 8.0, -5.0, 0.0])
    assert float(weighted_geometric_mean(column)) == pytest.approx(2 / 4 * 4.0 - 1 / 4 * 5.0)
    assert float(weighted_geometric_mean(column, min_side=2)) == pytest.approx(2 / 4 * 4.0)
    assert float(weighted_geometric_mean(column, min_side=2, zeros="authors")) == pytest.approx(
        2 / 4 * 4.0 - 2 / 4 * (5.0 * 1e-10) ** 0.5
    )
    assert float(weighted_geometric_mean(column, min_side=3)) == 0.0


def test_the_agreement_mask_zeroes_what_disagrees() -> None:
    stack = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [1.0, -1.0]])
    assert weighted_geometric_mean(stack, agreement=0.5).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_named(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="value 1 along dim 0"):
        weighted_geometric_mean(torch.tensor([[1.0], [bad]]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"zeros": "strct"}, "zeros='strct' is not valid: input should be 'ignore', 'strict' or 'authors'"),
        ({"agreement": 1.5}, "agreement=1.5 is not valid: input should be less than or equal to 1"),
        ({"min_side": 0}, "min_side=0 is not valid: input should be greater than or equal to 1"),
    ],
)
def test_unknown_options_are_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        weighted_geometric_mean(torch.ones(2, 2), **arguments)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 3)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.sampled_from(["ignore", "strict"]),
)
def test_float64_is_right_to_1e_12_of_the_larger_side(stack: np.ndarray, zeros: str) -> None:
    found = weighted_geometric_mean(torch.from_numpy(stack), zeros=zeros)
    for column in range(stack.shape[1]):
        numbers = [float(v) for v in stack[:, column]]
        sides = [abs(wgm_oracle([v if v * sign > 0 else 0.0 for v in numbers])) for sign in (1, -1)]
        difference = abs(float(found[column]) - wgm_oracle(numbers, zeros))
        assert difference <= 1e-12 * float(max(sides)) + 5e-324


@pytest.mark.parametrize("size", [1e-308, 1e-38, 0.1, 8.0, 1e38, 1.7e308])
@pytest.mark.parametrize("environments", [1, 3, 1000])
def test_equal_float64_values_come_back_to_1e_12(size: float, environments: int) -> None:
    value = torch.tensor([size, -size], dtype=torch.float64)
    torch.testing.assert_close(
        weighted_geometric_mean(value.expand(environments, 2)), value, rtol=1e-12, atol=0
    )


def test_a_small_float64_case_is_as_near_as_the_documentation_says() -> None:
    found = weighted_geometric_mean(torch.tensor([2.0, -8.0], dtype=torch.float64))
    assert float(found) == pytest.approx(-3.0, rel=1e-15)


@pytest.mark.parametrize(
    ("values", "dim", "sentence"),
    [
        (torch.ones(2, 2, dtype=torch.complex64), 0, "got torch.complex64; convert it to one of float16"),
        (torch.ones(2, 2).to(torch.float8_e4m3fn), 0, "got torch.float8_e4m3fn; convert it"),
        (torch.ones(2, 2, device="meta"), 0, "meta device, which holds no values"),
        (torch.eye(2).to_sparse(), 0, r"needs a dense tensor, not torch.sparse_coo; call .to_dense\(\)"),
        (torch.ones(2, 2), 2, r"dim=2, but values of shape \(2, 2\) have no such axis"),
        (torch.tensor(1.0), 0, r"dim=0, but values of shape \(\) have no such axis"),
        ([torch.ones(2), torch.ones(3)], 0, "cannot make one tensor of its values .*equal size"),
        (["a"], 0, "cannot make one tensor of its values"),
    ],
)
def test_what_has_no_weighted_geometric_mean_is_refused_in_one_sentence(
    values: object, dim: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        weighted_geometric_mean(values, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_is_detached_from_values_that_require_a_gradient(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0], [4.0]], dtype=dtype, requires_grad=True)
    found = weighted_geometric_mean(values)
    assert not found.requires_grad
    assert float(found) == pytest.approx(2.0)
    assert "detached" in (weighted_geometric_mean.__doc__ or "")


def test_no_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        weighted_geometric_mean(torch.empty(0, 3))
    with pytest.raises(ConfigError, match="at least one"):
        weighted_geometric_mean([])


def test_measurements_say_how_far_signs_agree_and_how_much_is_zero() -> None:
    aggregator = WeightedGeometricMean(agreement=0.5)
    state = aggregator.zero({"w": torch.zeros(2)})
    aggregator.accumulate(state, {"w": torch.tensor([1.0, 1.0])})
    aggregator.accumulate(state, {"w": torch.tensor([1.0, -1.0])})
    assert aggregator.finalize(state).measurements == {"sign_agreement": {"w": 0.5}, "zero_share": {"w": 0.5}}


@pytest.mark.parametrize("zeros", ["ignore", "strict", "authors"])
def test_compiled_loops_and_torch_finish_alike(
    zeros: str, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    values = every_exponent(generator)
    stack = torch.stack([values, values.roll(7), -values.roll(400), values.roll(90_000 % len(values))])
    stack[torch.rand(stack.shape, generator=generator) < 0.1] = 0.0

    def means() -> torch.Tensor:
        return weighted_geometric_mean(stack, zeros=zeros, min_side=2)

    assert torch.equal(*both_ways(monkeypatch, means))


@given(any_stacks(), st.sampled_from(["ignore", "strict"]))
def test_equal_sides_are_exactly_zero_and_signs_are_exchanged_exactly(
    stack: torch.Tensor, zeros: str
) -> None:
    assert not weighted_geometric_mean(torch.cat([stack, -stack]), zeros=zeros).any()
    negated = weighted_geometric_mean(-stack, zeros=zeros)
    assert torch.equal(negated, -weighted_geometric_mean(stack, zeros=zeros))


def test_a_tie_among_zeros_is_exactly_zero() -> None:
    assert float(weighted_geometric_mean(torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0]))) == 0.0
