"""Parts are built by name, an object is passed through, and what a part does not know is refused."""

from __future__ import annotations

import pytest

from fedilc.aggregation import AGGREGATORS, Mean
from fedilc.errors import ConfigError
from fedilc.penalties import PENALTIES, Fishr


def test_options_are_those_of_the_class_and_an_object_takes_none() -> None:
    assert AGGREGATORS.options("geometric") == ("zeros", "agreement", "min_side")
    assert PENALTIES.options("fishr") == ("covariance", "reduction")
    assert AGGREGATORS.options(Mean()) == PENALTIES.options(Fishr()) == ()


def test_an_object_is_passed_through_and_takes_no_option() -> None:
    own = Fishr("full")
    assert PENALTIES.build(own) is own
    with pytest.raises(ConfigError, match="penalty Fishr has no option 'covariance'; it takes none"):
        PENALTIES.build(own, covariance="diagonal")


def test_a_name_or_an_option_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="penalty 'fisher' is unknown; did you mean 'fishr'"):
        PENALTIES.build("fisher")
    with pytest.raises(ConfigError, match="aggregation 'None' is unknown"):
        AGGREGATORS.build(None)
    with pytest.raises(ConfigError, match="penalty 'vrex' has no option 'covariance'; it takes reduction"):
        PENALTIES.build("vrex", covariance="full")
