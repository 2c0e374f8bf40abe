"""The verdict, from scores made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from hospitals import hospitals, made_score, made_sites, study_table, with_score

from fedilc.studies.study.choice import Choice
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.verdict import alarm, verdict


def found(folder: Path, areas: dict[str, list[float]], sites: int = 4, rows: int = 60) -> StudyResult:
    """A study whose methods have these areas at the sites, give or take 0.01 over the examples."""
    frame = hospitals(sites, rows).with_columns((pl.col("died") == "yes").alias("expired"))
    data = study_table(folder, frame)
    names = tuple(name for name in areas if name != "null")
    plan = StudyPlan(data, StudySettings(algorithms=names, references=False))
    values = {site: {name: at[n] for name, at in areas.items()} for n, site in enumerate(data.silos)}
    return StudyResult(plan, {}, made_sites(plan, values, error=0.01), {})


def test_a_lead_at_every_site_is_more_than_chance(tmp_path: Path) -> None:
    _, which, sure, power = verdict(
        found(tmp_path, {"fedavg": [0.70, 0.71, 0.72, 0.70], "geometric": [0.80, 0.81, 0.81, 0.81]})
    )
    assert which == (
        "At these sites, geometric had the highest mean AUROC of 2 methods: 0.807 on average over 4 held-out "
        "sites (fedavg 0.708); being the highest of 2 is partly luck."
    )
    # The differences 0.10, 0.10, 0.09 and 0.11 have the mean 0.1 and, times 1/4 + 1/3, the standard error
    # 0.00624; Student's t with 3 degrees has the quantile 3.182.
    assert sure == (
        "Its mean difference from fedavg is +0.100 (95 % interval over sites +0.080 to +0.120; better at 4 "
        "of 4 sites; p < 0.001): there is evidence that geometric is better at sites like these."
    )
    assert power.startswith(
        "With 4 sites (125 events and 115 non-events), these data leave open mean differences from +0.080 to "
        "+0.120; 4 sites are too few to say how geometric and fedavg differ at a single new site; these data"
    )


def test_a_lead_at_some_sites_is_said_to_be_no_proof(tmp_path: Path) -> None:
    _, which, sure, power = verdict(
        found(tmp_path, {"fedavg": [0.70, 0.80, 0.70, 0.80], "geometric": [0.80, 0.75, 0.80, 0.75]})
    )
    assert "geometric had the highest" in which
    assert sure.endswith(": this is consistent with chance: there is no evidence that geometric is better.")
    assert "leave open mean differences from -0.1" in power


def test_if_the_reference_is_best_no_method_was_better(tmp_path: Path) -> None:
    areas = {
        "fedavg": [0.8, 0.8, 0.81, 0.8],
        "geometric": [0.7, 0.7, 0.7, 0.7],
        "fedsgd": [0.79, 0.8, 0.8, 0.8],
    }
    _, which, sure, _ = verdict(found(tmp_path, areas))
    assert "fedavg had the highest mean AUROC of 3 methods" in which
    assert sure.startswith("The mean difference of the nearest method, fedsgd, from fedavg is -0.005")
    assert "; interval and p corrected for 2 comparisons)" in sure
    assert sure.endswith("this is consistent with chance: there is no evidence that they differ.")


def test_a_method_that_is_worse_at_every_site_is_said_to_be(tmp_path: Path) -> None:
    areas = {"fedavg": [0.8, 0.8, 0.81, 0.8], "geometric": [0.7, 0.7, 0.7, 0.7]}
    sure = verdict(found(tmp_path, areas))[2]
    assert sure.endswith("there is evidence that geometric is worse at sites like these.")


def test_the_same_difference_at_every_site_is_not_tested(tmp_path: Path) -> None:
    areas = {"fedavg": [0.7] * 4, "geometric": [0.8] * 4}
    _, _, sure, power = verdict(found(tmp_path, areas))
    assert sure.endswith("with the same difference at every site, no test over sites is possible.")
    assert "p " not in sure
    assert "cannot show how methods differ at the next site" in power


def test_methods_with_the_same_score_at_every_site_are_not_ranked(tmp_path: Path) -> None:
    _, which, sure, power = verdict(found(tmp_path, {"fedavg": [1.0] * 4, "geometric": [1.0] * 4}))
    assert which == (
        "All 2 methods had the same AUROC at every held-out site: 1.000 on average over 4 held-out sites."
    )
    assert sure.startswith("No method is better by this score")
    assert power.startswith("These data cannot show which method is better")


def test_a_column_that_nearly_is_the_label_is_part_of_what_is_not_shown(tmp_path: Path) -> None:
    areas = {"fedavg": [0.99, 0.99, 0.98, 0.99], "geometric": [0.99, 0.98, 0.99, 0.99]}
    *_, power = verdict(found(tmp_path, areas, rows=30))
    assert power.endswith(
        "; these data cannot show how well a model does without 'expired', which alone predicts the label "
        "almost perfectly."
    )
    assert "how well" not in verdict(found(tmp_path, areas, rows=10))[3]  # too few rows to know


def few_events(folder: Path, deaths: list[int], rows: int = 60) -> StudyPlan:
    """Sites of which each has this many events."""
    frame = hospitals(len(deaths), rows)
    row = pl.int_range(pl.len()) % rows
    site = pl.int_range(pl.len()) // rows
    died = row < site.replace_strict(dict(enumerate(deaths)))
    frame = frame.with_columns(pl.when(died).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("died"))
    return StudyPlan(study_table(folder, frame), StudySettings(algorithms=("fedavg", "geometric")))


def scored(plan: StudyPlan) -> StudyResult:
    random = np.random.default_rng(0)
    outputs = {
        site: {name: [random.normal(size=(len(y), 1))] for name in plan.settings.algorithms}
        for site, y in plan.data.labels.items()
    }
    return StudyResult.of(plan, {}, outputs, {})


def test_sites_with_few_events_are_left_out_and_named_and_the_events_of_the_others_are_counted(
    tmp_path: Path,
) -> None:
    result = scored(few_events(tmp_path, [30, 9, 20, 10, 0]))
    assert result.sites_with("auroc") == ["H0", "H2", "H3"]
    assert len(result.sites_with("log_loss")) == 5
    assert set(result.scores["H1"]["fedavg"]["auroc"].seeds) == {None}
    _, which, sure, power = verdict(result)
    assert "on average over 3 of 5 held-out sites" in which
    assert "; it is not estimable at H1 (9 events, fewer than 10), H4 (no events); being" in which
    assert "of 3 sites" in sure
    assert power.startswith(
        "With 3 sites (60 events and 120 non-events), these data leave open mean differences"
    )
    assert power.endswith(
        "; 3 sites are too few to say how geometric and fedavg differ at a single new site."
    )
    result = scored(few_events(tmp_path, [30, 15, 20, 10, 20]))
    following = result.next_difference(result.best("auroc"), "auroc")
    if result.best("auroc") == "fedavg":
        following = result.next_difference("geometric", "auroc")
    assert verdict(result)[3].endswith(
        f", and at a single new site from {following.low:+.3f} to {following.high:+.3f} (95 % prediction "
        "interval)."
    )


def test_if_no_site_has_enough_events_the_log_loss_decides_and_if_none_has_ten_examples_nothing(
    tmp_path: Path,
) -> None:
    _, which, _, power = verdict(scored(few_events(tmp_path, [9, 8, 7])))
    assert "had the lowest mean log loss" in which
    assert "AUROC" not in which
    assert power.startswith("With 3 sites (24 events and 156 non-events)")
    _, which, *_ = verdict(scored(few_events(tmp_path, [4, 4, 4], rows=9)))
    assert which == "No score is estimable: every held-out site has fewer than 10 examples."


def test_one_method_is_compared_with_nothing(tmp_path: Path) -> None:
    _, which, sure, _ = verdict(found(tmp_path, {"fedsgd": [0.8, 0.8, 0.8, 0.8]}))
    assert "fedsgd had AUROC 0.800" in which
    assert sure == "No other method was trained, so nothing is compared."


def test_two_sites_cannot_speak_of_the_next(tmp_path: Path) -> None:
    _, _, sure, power = verdict(found(tmp_path, {"fedavg": [0.7, 0.8], "geometric": [0.8, 0.9]}, 2))
    assert sure.endswith("with fewer than three sites, no test over sites is possible.")
    assert "cannot show how methods differ at the next site" in power


def test_scores_over_097_at_most_sites_are_an_alarm(tmp_path: Path) -> None:
    high = found(tmp_path, {"fedavg": [0.98, 0.99, 0.98, 0.6], "geometric": [0.5, 0.5, 0.5, 0.5]})
    said = alarm(high)
    assert said is not None
    assert said.startswith("The AUROC of fedavg is over 0.97 at 3 of 4 held-out sites.")
    assert "'expired' (1.000)" in said
    assert alarm(found(tmp_path, {"fedavg": [0.98, 0.99, 0.9, 0.6]})) is None


def informed(plan: StudyPlan) -> StudyResult:
    """A study whose outputs tell events from non-events about equally well at every site."""
    random = np.random.default_rng(0)
    outputs = {
        site: {name: [random.normal(size=(len(y), 1)) + y[:, None]] for name in plan.settings.algorithms}
        for site, y in plan.data.labels.items()
    }
    return StudyResult.of(plan, {}, outputs, {})


def test_the_first_sentence_says_what_to_expect_at_a_new_site(tmp_path: Path) -> None:
    result = informed(few_events(tmp_path, [30, 9, 20, 30, 20]))
    found = result.next_site("fedavg", "auroc")
    assert (found.sites, found.headline) == (4, "empirical")
    assert verdict(result)[0] == (
        f"At a new site like these, expect AUROC between {found.low:.2f} and {found.high:.2f} with fedavg "
        "(95 % prediction interval from 4 sites, which assumes that sites differ as they did in other "
        "validations of clinical models; from these sites alone, "
        f"{found.jeffreys_low:.2f} to {found.jeffreys_high:.2f})."
    )
    result = informed(few_events(tmp_path, [30, 25, 20, 30, 20]))
    found = result.next_site("fedavg", "auroc")
    assert (found.sites, found.headline) == (5, "Jeffreys")
    assert verdict(result)[0] == (
        f"At a new site like these, expect AUROC between {found.low:.2f} and {found.high:.2f} with fedavg "
        "(95 % prediction interval from 5 sites)."
    )


def test_two_sites_have_no_interval_for_the_next_one(tmp_path: Path) -> None:
    assert verdict(informed(few_events(tmp_path, [30, 9, 20])))[0] == (
        "What AUROC to expect of fedavg at a new site is unknown: at least 3 sites with an estimable score "
        "are needed, and there are 2."
    )


def procedure(folder: Path, areas: dict[str, list[float]], losses: dict[str, float]) -> str:
    """The sentence on the procedure of a study whose methods have these areas, and these losses inside."""
    study = found(folder, areas)
    for site, methods in study.sites.items():
        for name, of in methods.methods.items():
            turned = made_score(1 - of.scores["auroc"].value, 0.01)
            study = with_score(study, site, name, "log_loss", turned)
    settings = replace(study.plan.settings, algorithms=("fedavg", "geometric"), references=True)
    choices = {
        site: {name: Choice({}, 1, losses[name], {}) for name in losses} for site in study.plan.held_out
    }
    chosen = dict.fromkeys(study.sites, min(losses, key=losses.__getitem__))
    plan = replace(study.plan, settings=settings)
    return verdict(replace(study, plan=plan, choices=choices, chosen=chosen))[1]


def test_the_second_sentence_says_which_simpler_models_the_procedure_does_not_beat(tmp_path: Path) -> None:
    areas = {
        "fedavg": [0.80, 0.81, 0.80, 0.81],
        "geometric": [0.90, 0.91, 0.90, 0.92],
        "logistic": [0.81, 0.80, 0.82, 0.81],
        "null": [0.5, 0.5, 0.5, 0.5],
    }
    said = procedure(tmp_path, areas, {"fedavg": 0.5, "geometric": 0.6, "logistic": 0.6})
    assert said.startswith(
        "The chosen procedure had AUROC 0.805 on average over 4 held-out sites (a constant prediction 0.500; "
        "plain logistic regression 0.810); it "
        "does not beat plain logistic regression (difference of AUROC over 4 sites -0.005, "
    )
    assert said.endswith(
        "; for each site it takes the federated method of lowest loss at the others if that is lower than "
        "logistic's by more than a standard error and at least 0.01, and logistic otherwise (fedavg for 4)."
    )
    assert "a constant prediction (" not in said
    assert "difference of log loss over 4 sites +0.005" in said
    best = procedure(tmp_path, areas, {"fedavg": 0.6, "geometric": 0.5, "logistic": 0.6})
    assert "(a constant prediction 0.500; plain logistic regression 0.810); for each site it takes" in best
    plain = procedure(tmp_path, areas, {"fedavg": 0.6, "geometric": 0.6, "logistic": 0.5})
    assert "; it is plain logistic regression for every site; for each site" in plain
    nothing = areas | {"fedavg": [0.45, 0.55, 0.52, 0.47]}
    worse = procedure(tmp_path, nothing, {"fedavg": 0.5, "geometric": 0.6, "logistic": 0.6})
    assert (
        "it does not beat a constant prediction (difference of AUROC over 4 sites -0.002, 95 % interval"
        in worse
    )
