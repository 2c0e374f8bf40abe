"""Sections of settings: unknown keys, missing keys and wrong values are each one sentence."""

from __future__ import annotations

import pytest
from pydantic import Field

from fedilc.errors import ConfigError
from fedilc.section import Section, validated


class Oven(Section):
    """A section of two settings."""

    degrees: float = Field(gt=0)
    fan: bool = False


def test_valid_settings_become_a_section_that_cannot_be_changed() -> None:
    oven = validated(Oven, {"degrees": 180})
    assert (oven.degrees, oven.fan) == (180.0, False)
    with pytest.raises(ValueError, match="frozen"):
        oven.fan = True


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"degree": 1}, "the key 'kitchen.degree' is unknown; did you mean 'degrees'?"),
        ({"degrees": -1, "fann": 1}, "the key 'kitchen.fann' is unknown; did you mean 'fan'?"),
        ({}, "the key 'kitchen.degrees' is missing; add it"),
        ({"degrees": -1}, "kitchen.degrees=-1 is not valid: input should be greater than 0"),
        ({"degrees": float("inf")}, "kitchen.degrees=inf is not valid: input should be a finite number"),
        ("warm", "kitchen='warm' is not a section; set its keys, as in kitchen.name=..."),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(values: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validated(Oven, values, "kitchen")
    assert str(refused.value) == sentence
