"""Tables in secure sums over HTTP: the coordinator's preprocessing follows from totals alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc
from fleets import Fleet, Member, fleet

from fedilc.data.tables.silo_summary import SiloSummary, summarise
from fedilc.data.tables.table_settings import TableSettings
from fedilc.privacy.identities import make_roster, new_identity
from fedilc.privacy.secure_sums import OtherListError
from fedilc.runtimes.remote.secure_messages import SurveyAnswer
from fedilc.runtimes.remote.survey import Survey
from fedilc.runtimes.rest.secure_silo import SecureMember, SignedTotals, SiloSums, SurveySilo, Total
from fedilc.runtimes.rest.secure_survey import SurveySums

SILOS = ["a", "b", "c"]
RUN = 'rounds = 3\nlearning_rate = 0.02\nalgorithm = "fishr-inter-geo"\npenalty_weight = 0.5\nseed = 3\n'
MODEL = '[model]\nname = "mlp"\nhidden = [6]\n'
SETTINGS = """label = "died"
columns = ["age", "stage", "lab", "sex", "died"]
missing = ["lab=-9"]
categories = {stage = ["1", "2", "3"], sex = ["f", "m"], died = ["no", "yes"]}
"""


def patients(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows).round(1)
    return pl.DataFrame(
        {
            "age": np.where(random.random(rows) < 0.2, "?", age.astype(str)),
            "stage": random.integers(1, 4, rows),
            "lab": np.where(random.random(rows) < 0.2, -9, random.normal(5, 1, rows).round(3)),
            "sex": random.choice(["m", "f"], rows),
            "died": np.where(age + random.normal(0, 8, rows) > 60, "yes", "no"),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate([*SILOS, "test"]):
        patients(120 + seed, seed).write_csv(tmp_path / f"{name}.csv")
    data = f'[data]\nsource = "remote-tables"\nsilos = {json.dumps(SILOS)}\ntest = "test.csv"\n{SETTINGS}'
    (tmp_path / "remote.toml").write_text(f"secure = true\nmin_silos = 3\n{RUN}{data}{MODEL}")
    here = f'[data]\nsource = "tables"\nfiles = "*.csv"\ntest = "test"\n{SETTINGS}'
    (tmp_path / "local.toml").write_text(f'sum_unit = "2^-40"\nmin_side = 3\n{RUN}{here}{MODEL}')
    keys = {name: new_identity(tmp_path / f"{name}.key").public for name in SILOS}
    make_roster(f"{name}={key}" for name, key in keys.items()).write(tmp_path / "roster.json")
    return tmp_path


def joined(processes: Fleet, url: str, name: str, *more: object) -> Member:
    folder = processes.folder
    words = ["join", url, "--silo", name, "--data", folder / f"{name}.csv", "--yes", "--require-secure"]
    words += ["--key", folder / f"{name}.key", "--roster", folder / "roster.json"]
    return processes.start(*words, "--state", folder / f"state-{name}", *more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")  # which value of the label counts as 1
def test_tables_in_secure_sums_give_the_preprocessing_and_the_bits_of_a_local_run(folder: Path) -> None:
    fedilc("run", folder / "local.toml", "--out", folder / "local")
    with fleet(folder) as processes:
        roster = ["--roster", folder / "roster.json"]
        coordinator, url = processes.serve(folder / "remote.toml", "--out", folder / "rest", *roster)
        silos = [joined(processes, url, name) for name in SILOS]
        assert coordinator.ended() == 0, coordinator.said
        assert [silo.ended() for silo in silos] == [0, 0, 0], [silo.said for silo in silos]
        assert all("is sent in secure sums over 3 silos only" in silo.said for silo in silos)
    one, other = (
        json.loads((folder / name / "preprocessing.json").read_text()) for name in ("local", "rest")
    )
    assert one == other
    (summary,) = json.loads((folder / "rest/summaries.json").read_text())
    assert (summary["name"], summary["rows"]) == ("all silos", 120 + 121 + 122)
    lines = [
        [json.loads(line) for line in (folder / name / "history.jsonl").read_text().splitlines()]
        for name in ("local", "rest")
    ]
    for mine, theirs in zip(*lines, strict=True):
        assert theirs["test_loss"] == mine["test_loss"]


class Sums:
    """Three silos whose coordinator is the test."""

    def __init__(self, folder: Path) -> None:
        self.identities = {name: new_identity(folder / name) for name in SILOS}
        self.roster = make_roster(f"{name}={one.public}" for name, one in self.identities.items())
        self.table = TableSettings(
            label="died", columns=("age", "died"), categories={"died": ["no", "yes"]}, missing=("?",)
        )
        self.survey = Survey(run="r", silos=SILOS, table=self.table, roster=self.roster.digest, members=3)
        self.folder = folder

    def silo(self, name: str, survey: Survey | None = None) -> SurveySilo:
        frame = patients(90, ord(name))
        summary = summarise(name, frame.select("age"), frame["died"], self.table, sent=True)
        member = SecureMember(self.identities[name], self.roster)
        sums = SiloSums(member, name, self.folder, lambda *_: None)
        return SurveySilo(survey or self.survey, summary, "digest of the table", sums)

    def total(self, survey: Survey) -> tuple[SiloSummary, list[str]]:
        """What the coordinator learns, and the masked words that it was sent."""
        sums, silos = SurveySums(survey, self.roster, 60), {n: self.silo(n, survey) for n in survey.silos}
        found, words = list[SiloSummary](), list[str]()
        collecting = threading.Thread(target=lambda: found.append(sums.collect()), daemon=True)
        collecting.start()
        while collecting.is_alive():
            for name, silo in silos.items():
                message = sums.message(name)
                if message is not None:
                    answer = SurveyAnswer.model_validate_json(json.dumps(silo.answer(message)))
                    assert answer.refused is None, answer.refused
                    words += [] if answer.words is None else [answer.words]
                    sums.put(name, answer)
        return found[0], words


def test_one_table_is_summed_over_one_set_of_silos(tmp_path: Path) -> None:
    run = Sums(tmp_path)
    first, sent = run.total(run.survey)
    again, sent_again = run.total(run.survey)  # as after a restart of the coordinator
    assert first == again
    assert first.rows == 270
    assert not set(sent) & set(sent_again)
    other = run.survey.model_copy(update={"run": "another", "silos": ["a", "b"], "members": 2})
    message = {"phase": "offer", "part": "counts", "attempt": "0" * 16}
    offers = {name: run.silo(name, other).answer(message)["offer"] for name in "ab"}
    own = run.silo("a", other)
    offers["a"] = own.answer(message)["offer"]
    assert "it needs 3 of" in own.answer({**message, "phase": "share", "offers": offers})["refused"]


def test_another_survey_of_the_same_table_is_over_the_same_silos(tmp_path: Path) -> None:
    """A second run with one silo fewer would give the sums of that silo's table."""
    path = tmp_path / "signed"
    SignedTotals(path).permit(Total("one", 0, "survey counts", "table", "t"), ["a", "b", "c", "d"])
    with pytest.raises(OtherListError):
        SignedTotals(path).permit(Total("two", 0, "survey counts", "table", "t"), ["a", "b", "c"])


def test_a_survey_without_declared_names_is_refused_by_the_command(folder: Path, refusal: Refusal) -> None:
    serve = ["serve", folder / "remote.toml", "--insecure", "--port", 0, "--out", folder / "run"]
    serve += ["--roster", folder / "roster.json"]
    text = (folder / "remote.toml").read_text()
    for line, sentence in (('columns = ["age"', "data.columns"), ("categories =", "data.categories.died")):
        (folder / "remote.toml").write_text("".join(x for x in text.splitlines(True) if line not in x))
        assert sentence in refusal(*serve)
