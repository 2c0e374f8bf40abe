"""A survey that is not valid is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedilc.data.tables.label_rule import LabelRule
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.survey import read_survey


def test_a_label_of_the_wire_cannot_compare_by_anything_else() -> None:
    for wrong in ({"comparison": "~"}, {"classes": ["only"]}):
        with pytest.raises(ValidationError):
            LabelRule.model_validate({"text": "y", "column": "y", **wrong})


def test_a_survey_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ProtocolError, match="survey cannot be read"):
        read_survey({"run": "x", "silos": ["a"], "table": {"label": "y", "more": 1}})
