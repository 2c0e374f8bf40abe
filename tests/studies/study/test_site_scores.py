"""Documents of held-out sites: to JSON and back to the bit, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from site_documents import ASKED, made_document

from fedilc.errors import DataError
from fedilc.studies.study.scoring import check_document
from fedilc.studies.study.site_scores import Score, SiteScores, variances_apart

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@settings(max_examples=40, deadline=None)
@given(st.data(), FLOATS, POSITIVE, FLOATS)
def test_a_document_survives_json_to_the_bit(
    data: st.DataObject, value: float, variance: float, estimate: float
) -> None:
    document = made_document(rows=60)
    method = data.draw(st.sampled_from(sorted(document.methods)))
    score = document.methods[method].scores["auroc"]
    changed = Score.model_validate(
        {**score.model_dump(), "seeds": (value, None), "variance": variance, "analysis": (estimate, variance)}
    )
    scores = document.methods[method].scores | {"auroc": changed}
    methods = document.methods | {method: document.methods[method].model_copy(update={"scores": scores})}
    sent = document.model_copy(update={"methods": methods})
    read = SiteScores.read(sent.to_bytes())
    assert read == sent
    assert read.to_bytes() == sent.to_bytes()
    found = read.methods[method].scores["auroc"]
    assert np.float64(found.seeds[0]).tobytes() == np.float64(value).tobytes()
    assert np.float64(found.analysis[0]).tobytes() == np.float64(estimate).tobytes()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("examples",), -1),
        (("examples",), 1.5),
        (("more",), 1),
        (("reasons", "auroc"), "<script>"),
        (("methods", "fedavg", "scores", "auroc", "variance"), -1.0),
        (("methods", "fedavg", "scores", "auroc", "found", "value"), float("nan")),
        (("methods", "fedavg", "scores", "auroc", "found", "low"), float("inf")),
        (("methods", "fedavg", "curve", "observed"), [1.5]),
        (("classes", "x"), 3),
    ],
)
def test_a_document_that_cannot_be_is_refused(place: tuple[str, ...], value: object) -> None:
    content = json.loads(made_document(rows=60).to_bytes())
    part = content
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(DataError, match="these are no scores of a site"):
        SiteScores.read(json.dumps(content).encode())
    with pytest.raises(DataError):
        SiteScores.read(b"{")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"site": "H9"}, "they are those of 'H9'"),
        ({"examples": 3}, "they count more than their 3 examples"),
        ({"apart": {}}, "other scores"),
        ({"treat_all": ()}, "thresholds of the plan"),
    ],
)
def test_what_contradicts_the_question_is_refused(change: dict[str, object], said: str) -> None:
    document = made_document(rows=60)
    check_document(document, "H0", ASKED, document.methods)
    with pytest.raises(DataError, match=f"the scores of silo 'H0' are refused: .*{said}"):
        check_document(document.model_copy(update=change), "H0", ASKED, document.methods)


def test_methods_seeds_and_counts_must_be_those_asked_for() -> None:
    document = made_document(rows=60)
    with pytest.raises(DataError, match="they name the method 'null', which was not asked for"):
        check_document(document, "H0", ASKED, ("fedavg", "geometric", "site alone"))
    with pytest.raises(DataError, match="has 2 seeds, and 3 were asked for"):
        check_document(document, "H0", replace(ASKED, seeds=3), document.methods)
    of = document.methods["fedavg"]
    risks = of.risks.model_copy(update={"events": (1, *of.risks.events[1:])})
    changed = document.model_copy(
        update={"methods": document.methods | {"fedavg": of.model_copy(update={"risks": risks})}}
    )
    with pytest.raises(DataError, match="not those of all examples"):
        check_document(changed, "H0", ASKED, document.methods)


@given(st.lists(st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_variances_of_differences_are_those_of_the_gram_matrix(rows: list[list[int]]) -> None:
    influences = np.array(rows, float)
    gram = influences @ influences.T
    for i, row in enumerate(variances_apart(list(influences))):
        for j, value in enumerate(row):
            assert value == gram[i, i] + gram[j, j] - 2 * gram[i, j]
