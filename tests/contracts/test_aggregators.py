"""One contract for every aggregator: state, streaming, merging, outer products, rows and errors."""

from __future__ import annotations

import math

import pytest
import torch

from fedilc.aggregation import AGGREGATORS, Accumulation, Aggregator, Sum
from fedilc.aggregation.packed_sums import pack_sums
from fedilc.errors import ConfigError, NonFiniteError

pytestmark = pytest.mark.usefixtures("compiled_or_torch")

EVERY = [*(make() for make in map(AGGREGATORS.get, AGGREGATORS.names())), Sum()]
every_aggregator = pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)


def aggregate(aggregator: Aggregator, values: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    state = aggregator.zero(values[0])
    for value in values:
        aggregator.accumulate(state, value)
    return aggregator.finalize(state).value


def replies(generator: torch.Generator, count: int = 7) -> list[dict[str, torch.Tensor]]:
    return [
        {
            "weight": torch.randn(4, 3, generator=generator) * (torch.rand(4, 3, generator=generator) > 0.1),
            "bias": torch.randn(4, generator=generator).double(),
        }
        for _ in range(count)
    ]


def expected(aggregator: Aggregator, stack: torch.Tensor) -> torch.Tensor:
    """Each aggregator by its definition, on a stack, in float64."""
    stack = stack.double()
    name = type(aggregator).__name__
    share = stack.sign().mean(0).abs()
    if name == "Mean":
        return stack.mean(0)
    if name == "Sum":
        return stack.sum(0)
    if name == "AndMask":
        kept = (share >= 1.0).double()
        return stack.mean(0) * kept / kept.mean().clamp(min=1e-10)
    if name in ("TrimmedMean", "Median"):
        drop = 1 if name == "TrimmedMean" else (len(stack) - 1) // 2
        return stack.sort(0).values[drop : len(stack) - drop].mean(0)
    if name == "AbsoluteGeometricMean":
        sizes = stack.abs().where(stack != 0, 1e-10)
        return stack.mean(0).sign() * sizes.log().mean(0).exp()
    result = torch.zeros_like(stack[0])
    for sign in (1, -1):
        side = stack * sign > 0
        members = side.double().sum(0)
        product = (stack.abs().where(side, 1.0)).prod(0)
        result += sign * members / len(stack) * product ** (1 / members.clamp(min=1))
    return result


@every_aggregator
def test_streaming_equals_the_definition(aggregator: Aggregator, generator: torch.Generator) -> None:
    values = replies(generator)
    found = aggregate(aggregator, values)
    for name in ("weight", "bias"):
        stack = torch.stack([value[name] for value in values])
        torch.testing.assert_close(found[name].double(), expected(aggregator, stack), rtol=1e-6, atol=1e-9)


@every_aggregator
def test_dtypes_and_shapes_come_back(aggregator: Aggregator, generator: torch.Generator) -> None:
    found = aggregate(aggregator, replies(generator))
    assert found["weight"].dtype == torch.float32
    assert found["weight"].shape == (4, 3)
    assert found["bias"].dtype == torch.float64


@every_aggregator
def test_merging_parts_equals_one_pass(aggregator: Aggregator, generator: torch.Generator) -> None:
    values = replies(generator)
    left, right = aggregator.zero(values[0]), aggregator.zero(values[0])
    for value in values[:2]:
        aggregator.accumulate(left, value)
    for value in values[2:]:
        aggregator.accumulate(right, value)
    whole = aggregate(aggregator, values)
    for pair in ((left, right), (right, left)):
        merged = aggregator.finalize(aggregator.merge(*pair)).value
        for name, tensor in whole.items():
            torch.testing.assert_close(merged[name], tensor, rtol=1e-6, atol=0)


@every_aggregator
def test_merging_with_zero_changes_nothing(aggregator: Aggregator, generator: torch.Generator) -> None:
    values = replies(generator)
    state = aggregator.zero(values[0])
    for value in values:
        aggregator.accumulate(state, value)
    merged = aggregator.finalize(aggregator.merge(state, aggregator.zero(values[0]))).value
    assert all(torch.equal(merged[name], tensor) for name, tensor in aggregator.finalize(state).value.items())


@every_aggregator
def test_a_stack_equals_its_values_one_by_one(aggregator: Aggregator, generator: torch.Generator) -> None:
    values = replies(generator)
    state = aggregator.zero(values[0])
    sink = Accumulation(aggregator, state, "silo 'a'")
    for name in ("weight", "bias"):
        sink.stack(name, torch.stack([value[name] for value in values]))
    sink.counted(len(values))
    for name, tensor in aggregate(aggregator, values).items():
        torch.testing.assert_close(aggregator.finalize(state).value[name], tensor, rtol=1e-6, atol=0)


@every_aggregator
@pytest.mark.parametrize("signs", ["both", "positive inputs"])
def test_outer_products_equal_their_stack(
    aggregator: Aggregator, signs: str, generator: torch.Generator
) -> None:
    left = torch.randn(20, 4, generator=generator)
    right = torch.randn(20, 3, generator=generator)
    left[torch.rand(left.shape, generator=generator) < 0.2] = 0.0
    right = right.relu() if signs == "positive inputs" else right
    direct, formed = ({"w": torch.zeros(4, 3)} for _ in range(2))
    state, reference = aggregator.zero(direct), aggregator.zero(formed)
    Accumulation(aggregator, state, "a silo").outer("w", left, right)
    Accumulation(aggregator, reference, "a silo").stack("w", left.unsqueeze(2) * right.unsqueeze(1))
    state.counted(20)
    reference.counted(20)
    torch.testing.assert_close(
        aggregator.finalize(state).value["w"], aggregator.finalize(reference).value["w"], rtol=1e-5, atol=1e-7
    )


@every_aggregator
@pytest.mark.parametrize("terms", [1, 3, 8, 70])
def test_matrix_products_equal_their_stack(
    aggregator: Aggregator, terms: int, generator: torch.Generator
) -> None:
    """Whole numbers, whose products are exact in whatever order they are added."""
    left, right = (torch.randint(-3, 4, (7, terms, size), generator=generator).float() for size in (5, 6))
    state, reference = (aggregator.zero({"w": torch.zeros(5, 2, 3)}) for _ in range(2))
    Accumulation(aggregator, state, "a silo").products("w", left, right)
    stack = torch.einsum("eir,eic->erc", left, right).view(7, 5, 2, 3)
    Accumulation(aggregator, reference, "a silo").stack("w", stack)
    state.counted(7)
    reference.counted(7)
    assert torch.equal(aggregator.finalize(state).value["w"], aggregator.finalize(reference).value["w"])


@every_aggregator
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_product_that_is_not_finite_names_the_silo(aggregator: Aggregator, value: float) -> None:
    left, right = torch.zeros(3, 2, 4), torch.full((3, 2, 5), 1e30)
    left[1, 0, 2] = value
    sink = Accumulation(aggregator, aggregator.zero({"w": torch.zeros(4, 5)}), "silo 'a'")
    with pytest.raises(NonFiniteError, match=r"silo 'a' sent a NaN or infinite value for 'w'"):
        sink.products("w", left, right)


@every_aggregator
def test_single_rows_equal_their_dense_values(aggregator: Aggregator, generator: torch.Generator) -> None:
    index = torch.tensor([0, 2, 2, 1])
    rows = torch.randn(4, 3, generator=generator)
    dense = torch.zeros(4, 5, 3)
    dense[torch.arange(4), index] = rows
    state, reference = (aggregator.zero({"w": torch.zeros(5, 3)}) for _ in range(2))
    Accumulation(aggregator, state, "a silo").rows("w", index, rows)
    Accumulation(aggregator, reference, "a silo").stack("w", dense)
    state.counted(4)
    reference.counted(4)
    assert torch.equal(aggregator.finalize(state).value["w"], aggregator.finalize(reference).value["w"])


@every_aggregator
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_error_names_silo_and_parameter(aggregator: Aggregator, bad: float) -> None:
    state = aggregator.zero({"w": torch.zeros(2)})
    aggregator.accumulate(state, {"w": torch.tensor([1.0, 2.0])}, "silo 'south'")
    with pytest.raises(NonFiniteError, match=r"silo 'north'.*'w'"):
        aggregator.finalize(aggregator.accumulate(state, {"w": torch.tensor([1.0, bad])}, "silo 'north'"))


@every_aggregator
def test_nothing_has_no_aggregate(aggregator: Aggregator) -> None:
    with pytest.raises(ValueError, match="zero values"):
        aggregator.finalize(aggregator.zero({"w": torch.zeros(1)}))


@pytest.mark.parametrize(
    "aggregator", [a for a in EVERY if not a.keeps_values], ids=lambda a: type(a).__name__
)
def test_memory_does_not_grow_with_the_number_of_values(aggregator: Aggregator) -> None:
    state = aggregator.zero({"w": torch.zeros(10)})
    for _ in range(50):
        aggregator.accumulate(state, {"w": torch.ones(10)})
    assert sum(tensor.numel() for tensor in pack_sums(state, 50).tensors.values()) < 10 * 10


def test_a_large_stack_is_cut_into_pieces_with_the_same_result(generator: torch.Generator) -> None:
    stack = torch.randn(9, 1 << 20, generator=generator)
    aggregator = AGGREGATORS.build("mean")
    state = aggregator.zero({"w": stack[0]})
    Accumulation(aggregator, state, "a silo").stack("w", stack)
    state.counted(9)
    assert torch.equal(aggregator.finalize(state).value["w"], stack.double().mean(0).float())


def test_an_aggregator_is_built_by_name_or_passed_through() -> None:
    assert AGGREGATORS.build("and-mask", agreement=0.4).agreement == 0.4
    mine = AGGREGATORS.build("mean")
    assert AGGREGATORS.build(mine) is mine
    with pytest.raises(ConfigError, match="did you mean 'geometric'"):
        AGGREGATORS.build("geometrc")
    with pytest.raises(
        ConfigError, match="agreement=2 is not valid: input should be less than or equal to 1"
    ):
        AGGREGATORS.build("and-mask", agreement=2)


@pytest.mark.parametrize(
    ("choice", "option", "sentence"),
    [
        ("and-mask", "zeros", "'and-mask' has no option 'zeros'; it takes agreement, rescale"),
        ("geometric", "rescale", "'geometric' has no option 'rescale'; it takes zeros, agreement, min_side"),
        ("mean", "agreement", "'mean' has no option 'agreement'; it takes none"),
        ("absolute-geometric", "zeros", "'absolute-geometric' has no option 'zeros'; it takes none"),
        (Sum(), "zeros", "Sum has no option 'zeros'; it takes none"),
    ],
)
def test_an_option_that_an_aggregator_does_not_know_is_refused(
    choice: str | Aggregator, option: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AGGREGATORS.build(choice, **{option: 0.5})
