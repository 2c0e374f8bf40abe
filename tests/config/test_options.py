"""The options of a run: the same as those of `train`, with the same types and defaults."""

from __future__ import annotations

import inspect
import re

import pytest

from fedilc import LocalSteps, train
from fedilc.config import Options, validated
from fedilc.errors import ConfigError, FedILCWarning

LEAST = {"rounds": 1, "learning_rate": 0.1}


def test_every_option_is_one_that_train_takes_with_the_same_default() -> None:
    for name, parameter in inspect.signature(train).parameters.items():
        field = Options.model_fields.get(name)
        if field is not None and parameter.default is not inspect.Parameter.empty:
            assert parameter.default == field.default, name
        elif field is not None:
            assert field.is_required(), name


def test_every_option_of_train_is_explained() -> None:
    assert train.__doc__ is not None
    built_in = ("zeros", "agreement", "min_side", "trim", "covariance", *LocalSteps.FLAT)
    assert [key for key in (*Options.model_fields, *built_in) if key not in train.__doc__] == []


def test_an_option_of_a_part_is_taken_under_its_name_and_none_is_its_default() -> None:
    options = validated(Options, LEAST | {"zeros": "strict", "local_steps": 3, "trim": None})
    assert options.part_options == {"zeros": "strict", "local_steps": 3}
    assert options.model_dump()["zeros"] == "strict"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"zeros": "some"}, "zeros='some' is not valid: input should be 'ignore', 'strict' or 'authors'"),
        ({"local_steps": 0}, "local_steps=0 is not valid: input should be greater than 0"),
        ({"zerso": "strict"}, "the key 'zerso' is unknown; did you mean 'zeros'?"),
        ({"zerso": None}, "the key 'zerso' is unknown; did you mean 'zeros'?"),
        ({"name": "x"}, "the key 'name' is unknown"),
    ],
    ids=str,
)
def test_an_option_that_no_part_declares_or_accepts_is_refused(
    given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        validated(Options, LEAST | given)


def test_settings_cannot_be_changed_behind_the_runs_back() -> None:
    options = validated(Options, LEAST)
    with pytest.raises(ValueError, match="frozen"):
        options.rounds = 2


def test_every_option_says_what_it_is() -> None:
    assert [name for name, field in Options.model_fields.items() if not field.description] == []


def test_a_number_as_penalty_is_still_its_weight_with_a_note() -> None:
    with pytest.warns(FedILCWarning, match="a number for the penalty is now called penalty_weight"):
        options = validated(Options, LEAST | {"penalty_weight": 7.0, "penalty": 5})
    assert (options.penalty_weight, options.penalty) == (5.0, None)


@pytest.mark.parametrize("weights", ["equal", {"a": 2.0, "b": 1}, None])
def test_weights_are_a_rule_or_a_number_per_silo(weights: object) -> None:
    assert validated(Options, LEAST | {"silo_weights": weights}).silo_weights == weights


def test_silo_weights_are_still_taken_by_their_former_name_with_a_note() -> None:
    with pytest.warns(FedILCWarning, match="weights of silos are now called silo_weights"):
        assert validated(Options, LEAST | {"weights": "examples"}).silo_weights == "examples"
    assert validated(Options, LEAST | {"weights": None}).silo_weights is None
    with pytest.raises(ConfigError, match="weights is the former name of silo_weights; leave weights out"):
        validated(Options, LEAST | {"weights": "examples", "silo_weights": "equal"})


@pytest.mark.parametrize("weights", ["heavy", {}, {"a": 0}, {"a": -1.0}, {"a": True}, {"a": "2"}, 3], ids=str)
def test_other_weights_are_refused_in_one_sentence(weights: object) -> None:
    with pytest.raises(ConfigError, match=r"weights.* is not valid: give one of equal, .*, or a number"):
        validated(Options, LEAST | {"silo_weights": weights})


def test_none_as_a_word_is_no_balance() -> None:
    assert validated(Options, LEAST | {"balance": "none"}).balance is None


@pytest.mark.parametrize(
    ("changes", "least"), [({}, 5), ({"silos_per_round": 3}, 3), ({"silos_per_round": 3, "min_silos": 2}, 2)]
)
def test_a_round_needs_all_silos_unless_fewer_are_asked_for(changes: dict[str, int], least: int) -> None:
    assert validated(Options, LEAST | changes).quorum(5) == least


def test_fishr_reduction_is_the_flat_spelling_of_the_penaltys_option() -> None:
    found = Options(rounds=1, learning_rate=0.1, fishr_reduction="sum")
    assert found.part_options == {"reduction": "sum"}
    assert found.fishr_reduction == "sum"
    assert found == Options(rounds=1, learning_rate=0.1, reduction="sum")
    assert Options(rounds=1, learning_rate=0.1).fishr_reduction == "mean"
    for wrong, sentence in (
        ({"fishr_reduction": "median"}, "reduction='median' is not valid"),
        ({"fishr_reduction": "sum", "reduction": "mean"}, "are the same option but differ"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            validated(Options, {"rounds": 1, "learning_rate": 0.1, **wrong})
