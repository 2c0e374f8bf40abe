"""What a silo sends in a study: the message types that docs/explanation/security.md lists, and no other."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from ports import free_port

from fedilc.data.sources import RemoteTables
from fedilc.data.tables.preprocessing import fit_preprocessing
from fedilc.data.tables.silo_tables import SiloTable
from fedilc.errors import ConfigError, ProtocolError
from fedilc.evaluation.estimates import Floors
from fedilc.federation.program import HESSIAN
from fedilc.runtimes.remote.stack_declaration import DeclaredStack, ModelTask
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.remote.survey import Survey, SurveyLimits, label_rule, summarise_table
from fedilc.runtimes.remote.wire import pack, read_header
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.http_client import HttpClient, Response
from fedilc.runtimes.rest.participant import SiloLimits
from fedilc.storage.run_folder import SUMMARIES
from fedilc.studies.federated.evaluation import OwnStudy
from fedilc.studies.federated.serve import StudyService
from fedilc.studies.federated.silo import StudyMember, read_silo, require_stack

SILOS = ["a", "b", "c"]
SETTINGS: dict[str, Any] = {
    "algorithms": ["logistic", "fishr-inter-geo"],
    "rounds": 2,
    "seeds": 1,
    "learning_rates": [0.03],
    "penalty_weights": [1.0],
    "weight_decays": [0.1],
    "network_decays": [0.0],
    "scalings": ["moments"],
    "hidden": [4],
}
STEPS = ("update", "statistics", "matched-update", "score")
PAGE = Path(__file__).parents[3] / "docs/explanation/security.md"


class Recorder(HttpClient):
    """A silo's client that keeps what it sends."""

    def call(self, method: str, path: str, max_bytes: int = 4 << 20, **options: Any) -> Response:
        if method != "GET":
            self.__dict__.setdefault("sent", []).append((path, options.get("content"), options.get("json")))
        return super().call(method, path, max_bytes, **options)


def write_tables(folder: Path, rows: int) -> None:
    folder.mkdir()
    for number, name in enumerate(SILOS):
        random = np.random.default_rng(number)
        age, lab = random.normal(60, 10, rows).round(1), random.normal(5, 1, rows).round(2)
        died = age + random.normal(0, 8, rows) > 60
        pl.DataFrame({"age": age, "lab": lab, "died": died.astype(int)}).write_csv(folder / f"{name}.csv")


def transcript(folder: Path, rows: int) -> list[tuple[str, bytes | None, Any]]:
    """Everything that the silo "a" sends in a study after the survey."""
    write_tables(folder, rows)
    source = RemoteTables(source="remote-tables", silos=SILOS, label="died")
    survey, out = Survey.of("study", source), folder / "rest"
    out.mkdir()
    found = [summarise_table(name, folder / f"{name}.csv", survey) for name in SILOS]
    (out / SUMMARIES).write_text(json.dumps([one.model_dump(mode="json") for one in found]))
    address = Address("127.0.0.1", free_port(), insecure=True)
    url, before = f"http://127.0.0.1:{address.port}", torch.get_num_threads()
    clients = {name: Recorder(url, None) for name in SILOS}

    def join(name: str) -> None:
        limits = SurveyLimits()
        StudyMember(
            clients[name],
            name,
            lambda manifest: read_silo(name, folder / f"{name}.csv", manifest, limits),
            lambda *_: None,
            SiloLimits(),
            limits,
            Floors(10, 10),
        ).take_part()

    threads = [threading.Thread(target=join, args=(name,), daemon=True) for name in SILOS]
    service = StudyService("study", source, SETTINGS, out, address, None, lambda _: None)
    try:
        for thread in threads:
            thread.start()
        with service.running() as result:
            assert set(result.sites) == set(SILOS)
        for thread in threads:
            thread.join(60)
    finally:
        torch.set_num_threads(before)
        for client in clients.values():
            client.close()
    sent: list[tuple[str, bytes | None, Any]] = clients["a"].__dict__["sent"]
    return sent


def kind_of(path: str, content: bytes | None, given: Any) -> tuple[str, str]:
    """What a message is, and everything about its size: shapes of tensors, and how many values it holds."""
    if path.endswith("/join"):
        return "join", json.dumps(sorted(given))
    step = path.rpartition("/")[2]
    assert content is not None
    if step == "evaluate":
        return step, str(leaves(json.loads(content)))
    entries, about = read_header(content, len(content))
    shapes = {name: (one["dtype"], one["shape"]) for name, one in sorted(entries.items())}
    return step, json.dumps([shapes, sorted(about)])


def leaves(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(leaves, value.values()))
    return sum(map(leaves, value)) if isinstance(value, list) else 1


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")
def test_a_silo_sends_what_the_page_lists_in_sizes_that_no_row_changes(tmp_path: Path) -> None:
    found = [
        Counter(kind_of(*message) for message in transcript(tmp_path / str(rows), rows))
        for rows in (150, 210)
    ]
    kinds = {kind for kind, _ in found[0]}
    section = PAGE.read_text().partition("## What a silo sends in a study")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([a-z-]+)`", section, re.M))
    assert kinds <= listed - {"summary"}
    assert {
        "join",
        "declare",
        "check",
        "update",
        "statistics",
        "matched-update",
        "score",
        "evaluate",
    } <= kinds
    first, second = ({one for one in counted if one[0] != "evaluate"} for counted in found)
    assert first == second
    (few,), (many,) = ([int(size) for kind, size in counted if kind == "evaluate"] for counted in found)
    assert abs(few - many) < 0.05 * few  # a cell of a histogram that is too small in one of them
    shapes = [shape for kind, text in first if kind in STEPS for _, shape in json.loads(text)[0].values()]
    assert not any({150, 210} & set(shape) for shape in shapes)
    assert any(f"answer.{HESSIAN}" in text for _, text in first)


def study_at_a_silo(folder: Path, rows: int, **settings: Any) -> tuple[StudyManifest, SiloTable]:
    write_tables(folder, rows)
    source = RemoteTables(source="remote-tables", silos=SILOS, label="died")
    found = [summarise_table(name, folder / f"{name}.csv", Survey.of("study", source)) for name in SILOS]
    rule = label_rule(source.settings(), found)
    manifest = StudyManifest(
        run="study",
        silos=SILOS,
        table=source.settings(),
        label=rule.model_dump(mode="json"),
        loss="binary",
        outputs=1,
        settings=SETTINGS | settings,
    )
    return manifest, read_silo("a", folder / "a.csv", manifest, SurveyLimits())


def stack_with(**values: Any) -> DeclaredStack:
    usual = {
        "algorithm": "fedavg",
        "options": {},
        "training": ["a", "b"],
        "hidden": [4],
        "seed": 0,
        "inputs": 0,
    }
    return DeclaredStack(tasks=(ModelTask.model_validate(usual | values),), preprocessing=())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rows": 1}, "other rows than the study says"),
        ({"validation": 0.005}, "other rows than the study says"),
        ({"training": ["b", "z"]}, "does not have"),
        ({"rows": 12}, "losses of 12 patients, fewer than `min_cell=15`"),
        ({"validation": 0.2}, "losses of 12 patients, fewer than `min_cell=15`"),
    ],
)
def test_a_stack_cannot_ask_for_losses_of_few_patients(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    manifest, table = study_at_a_silo(tmp_path / "tables", 60, choosing_rows=12)
    require_stack(stack_with(), manifest, table, Floors(10, 15))
    with pytest.raises((ConfigError, ProtocolError), match=sentence):
        require_stack(stack_with(**values), manifest, table, Floors(10, 15))


def test_a_held_out_silo_scores_the_models_of_the_study_only(tmp_path: Path) -> None:
    manifest, table = study_at_a_silo(tmp_path / "tables", 60, references=False)
    own = OwnStudy(manifest, table, Floors(10, 10))

    def asked(null: list[float] | None = None, *methods: str) -> dict[str, Any]:
        one = {"algorithm": "fedsgd", "hidden": [4], "inputs": 0, "parameters": {}}
        models = [one | {"method": method} for method in methods]
        facts = {"models": models, "preprocessing": [], "everyone": {}, "null": null, "drawn": []}
        return {"asked": facts}

    twice = asked(None, "fishr-inter-geo", "fishr-inter-geo")
    for wrong in (asked(None, "made-up"), twice, asked([0.5] * 1000)):
        with pytest.raises(ProtocolError, match="the coordinator"):
            own.answer(b"", wrong, lambda made: made.transform(table.frame))


def test_the_owner_reads_what_the_study_asks(tmp_path: Path) -> None:
    subgroups = ["age>=89", "ward"]
    manifest, table = study_at_a_silo(tmp_path / "tables", 60, subgroups=subgroups, thresholds=[0.25])
    found = " ".join(OwnStudy(manifest, table, Floors(12, 11)).asked())
    for part in ("logistic, fishr-inter-geo", "0.25", "age>=89, ward", "12 events", "below 11"):
        assert part in found
    endless = manifest.model_copy(update={"settings": manifest.settings | {"seeds": 10**12}})
    with pytest.raises(ProtocolError, match="more than 1000 seeds"):
        OwnStudy(endless, table, Floors(12, 11)).asked()


def test_columns_that_are_no_inputs_name_subgroups_if_the_owner_lists_them(tmp_path: Path) -> None:
    manifest, _ = study_at_a_silo(tmp_path / "tables", 60)
    dropped = manifest.model_copy(update={"table": manifest.table.model_copy(update={"drop": ("lab",)})})
    file = tmp_path / "tables/a.csv"
    assert read_silo("a", file, dropped, SurveyLimits()).unused.columns == ["lab"]
    listed = SurveyLimits(columns=("age", "died"))
    assert read_silo("a", file, dropped, listed).unused.columns == []


def test_a_silo_without_the_column_of_a_subgroup_scores_all_the_same(tmp_path: Path) -> None:
    manifest, table = study_at_a_silo(tmp_path / "tables", 60, subgroups=["ward==2"], references=False)
    source = RemoteTables(source="remote-tables", silos=SILOS, label="died")
    summary = summarise_table("a", tmp_path / "tables/a.csv", Survey.of("study", source))
    rule = label_rule(manifest.table, [summary])
    everyone = fit_preprocessing([summary], rule, manifest.table).model_dump(mode="json")
    asked = {"models": [], "preprocessing": [], "everyone": everyone, "null": None, "drawn": []}
    own = OwnStudy(manifest, table, Floors(10, 10))
    body = pack({}, {"asked": asked})
    assert own.answer(body, {"asked": asked}, lambda made: made.transform(table.frame)).subgroups
