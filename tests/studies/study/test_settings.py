"""The settings of a study."""

from __future__ import annotations

from fedilc.studies.study.settings import StudySettings


def test_a_network_that_is_given_has_no_others_to_choose_from() -> None:
    several = StudySettings(networks=((), (8,)))
    assert several.with_given({"seeds": 1}).networks == ((), (8,))
    assert several.with_given({"hidden": (16,)}).networks == ()
    assert several.with_given({"model": "linear"}).networks == ()
    assert several.with_given({"model": "linear"}).geometric_networks == ()
    assert StudySettings().with_given({"hidden": (16,), "networks": ((8,),)}).networks == ((8,),)
