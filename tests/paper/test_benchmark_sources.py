"""The benchmarks as sources: what their settings may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.config import validated
from fedilc.data.sources import ColorDigits, ColorDigitsShift, ManySilos, SiteShortcuts, Source
from fedilc.errors import ConfigError, DataError
from fedilc.paper.plugin import Eicu, EicuSynthetic, RotatedCifar10


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        (ColorDigits, {"flips": []}, "data.flips=.* at least 1 item"),
        (ColorDigits, {"flips": [0.1, 1.5]}, "data.flips.1=1.5 is not valid: .* less than or equal to 1"),
        (ColorDigits, {"test_flip": -0.1}, "data.test_flip=-0.1 is not valid: .* greater than or equal to 0"),
        (ColorDigits, {"test_label_flip": float("nan")}, "data.test_label_flip=nan is not valid: .* finite"),
        (ColorDigitsShift, {"copies": 0}, "data.copies=0 is not valid"),
        (RotatedCifar10, {"angles": []}, "data.angles=.* at least 1 item"),
        (RotatedCifar10, {"angles": [[10], []]}, "data.angles.1=.* at least 1 item"),
        (RotatedCifar10, {"test_range": [90, -90]}, "data.test_range=.* give the lowest angle first"),
        (RotatedCifar10, {"test_range": [90]}, "data.test_range=.* at least 2 items"),
        (RotatedCifar10, {"size": 24}, "data.size=24 is not valid: .* 16 or 32"),
        (RotatedCifar10, {"size": "large"}, "data.size='large' is not valid: .* 16 or 32"),
        (RotatedCifar10, {"subset": 0}, "data.subset=0 is not valid: .* greater than 0"),
        (ManySilos, {"silos": 0}, "data.silos=0 is not valid: .* greater than or equal to 1"),
        (SiteShortcuts, {"silos": 0}, "data.silos=0 is not valid: .* greater than or equal to 1"),
        (SiteShortcuts, {"marker_effect": float("inf")}, "data.marker_effect=inf is not valid: .* finite"),
        (Eicu, {"validation_share": 1.0}, "data.validation_share=1.0 is not valid: .* less than 1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_sentence(
    source: type[Source], settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        validated(source, settings, "data")
    assert "\n" not in str(refused.value)


def test_many_silos_in_memory_are_those_that_are_opened_one_at_a_time() -> None:
    source = ManySilos(silos=3, examples=4)
    federation, store = source.build(5, Path()), source.store(5, Path())
    assert [silo.name for silo in federation.silos] == list(store.silos)
    assert all(silo.x.equal(store.open(silo.name).x) for silo in federation.silos)
    assert federation.x_test is not None
    assert federation.x_test.equal(store.x_test)


def test_a_table_of_patients_that_is_nowhere_is_an_error_that_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.parquet does not exist; make it .* `fedilc data eicu"):
        Eicu(file="gone.parquet").build(0, tmp_path)


def test_settings_of_eicu_reach_the_federation() -> None:
    federation = EicuSynthetic(silos=2, validation_share=0.0, subset=0.5).build(1, Path())
    assert (federation.name, len(federation.silos)) == ("eicu-synthetic", 2)
    assert all(silo.x_val is None for silo in federation.silos)
