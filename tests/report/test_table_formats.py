"""One table in four forms: each form has every cell, every note, and nothing that it would misread."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import in_terminal

from fedilc.errors import ConfigError
from fedilc.report.tables import (
    Cell,
    Column,
    TableData,
    csv_text,
    latex,
    markdown,
    rich_table,
    write_tables,
)

GROUPED = TableData(
    name="loss",
    source="color-mnist",
    title="OOD loss",
    columns=(
        Column("round chosen by", words=True),
        Column("algorithm", words=True),
        Column("ours", ("mean", "deviation")),
        Column("verdict"),
    ),
    rows=(
        (Cell("oracle"), Cell("fedsgd"), Cell("0.5±0.1", parts=("0.5", "0.1")), Cell("-")),
        (Cell("oracle"), Cell("fedcurv"), Cell("0.4±0.2", True, ("0.4", "0.2")), Cell("within noise")),
        (Cell("last"), Cell("fedsgd"), Cell("-"), Cell("-2.5!")),
    ),
    notes=("2 seeds, 20 % of it", "second note"),
    grouped=True,
)
TWO = (Column("a", words=True), Column("b"))
PLAIN = TableData("plain", "demo", "Plain", TWO, ((Cell("x"), Cell("1")),))
texts = st.text(
    st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" |*_`<[]\\&%$#{}~^±°†σ×"), max_size=20
).map(lambda text: " ".join(text.split()))


def shown(table: TableData, width: int = 100, styled: bool = False, **options: bool) -> str:
    return in_terminal(rich_table(table, **options), width, styled)


def one_cell(text: str, bold: bool = False) -> TableData:
    return TableData("t", "demo", "T", TWO, ((Cell("x"), Cell(text, bold)),))


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ConfigError, match="a row of the table 't' has 1 cells for 2 columns"):
        TableData("t", "demo", "T", (Column("a"), Column("b")), ((Cell("x"),),))


def test_the_terminal_shows_a_group_as_a_line_of_its_own_and_the_best_in_bold() -> None:
    lines = [" ".join(line.split()) for line in shown(GROUPED).splitlines()]
    rule = next(number for number, line in enumerate(lines) if line and set(line) == {"─"})
    assert lines[0] == "OOD loss"
    assert lines[rule - 1] == "algorithm ours verdict"
    assert [line for line in lines[rule + 1 :] if line] == [
        "oracle",
        "fedsgd 0.5±0.1 -",
        "fedcurv 0.4±0.2 within noise",
        "last",
        "fedsgd - -2.5!",
        "2 seeds, 20 % of it",
        "second note",
    ]
    assert re.findall(r"\x1b\[1;32m(.*?)\x1b\[0m", shown(GROUPED, styled=True)) == ["0.4±0.2"]


def test_the_terminal_can_leave_out_all_notes_but_the_first() -> None:
    text = shown(GROUPED, all_notes=False)
    assert "2 seeds" in text
    assert "second note" not in text


def test_a_table_too_wide_for_a_terminal_breaks_its_cells_and_loses_nothing() -> None:
    columns = (Column("sub-environment", words=True), *(Column(f"fishr-intra-arith-{i}") for i in range(6)))
    row = (Cell("silo-1 with a longer name"), *(Cell(f"0.44{i} ±0.01{i}") for i in range(6)))
    text = shown(TableData("t", "demo", "T", columns, (row,)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for i in range(6):
        assert f"0.44{i}" in text
        assert f"±0.01{i}" in text


def test_a_table_without_rows_can_still_be_written() -> None:
    empty = TableData("t", "demo", "Few", (Column("a"), Column("b")), ())
    assert shown(empty).startswith("Few")
    assert csv_text(empty) == "a,b,note\n"
    assert r"\bottomrule" in latex(empty)
    assert markdown(empty).endswith("|--:|--:|\n")


def cells(line: str) -> list[str]:
    """The cells of a line of Markdown, unescaped: a bar with a backslash before it does not part them."""
    parts = re.split(r"(?<!\\)(?:\\\\)*\|", line.strip())
    return [re.sub(r"\\([\\|*<`\[\]_])", r"\1", part.strip()) for part in parts[1:-1]]


def test_markdown_has_a_pipe_table_with_the_best_in_bold_and_the_notes_as_a_list() -> None:
    lines = markdown(GROUPED).splitlines()
    assert lines == [
        "## OOD loss",
        "",
        "| round chosen by | algorithm | ours | verdict |",
        "|---|---|--:|--:|",
        "| oracle | fedsgd | 0.5±0.1 | - |",
        "| oracle | fedcurv | **0.4±0.2** | within noise |",
        "| last | fedsgd | - | -2.5! |",
        "",
        "- 2 seeds, 20 % of it",
        "- second note",
    ]


@given(texts.filter(lambda text: not text.endswith("\\")))
def test_markdown_keeps_the_text_of_a_cell_and_the_number_of_cells(text: str) -> None:
    line = markdown(one_cell(text)).splitlines()[4]
    assert cells(line) == ["x", text]


@pytest.mark.parametrize(
    ("text", "written"),
    [("fishr_reduction", "fishr_reduction"), ("_a_", r"\_a\_"), ("a*b", r"a\*b"), ("p < 1", r"p \< 1")],
)
def test_markdown_escapes_what_would_be_read_as_markup(text: str, written: str) -> None:
    assert f"| x | {written} |" in markdown(one_cell(text))


def test_csv_parts_means_from_deviations_and_has_the_first_note_in_every_row() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(GROUPED))))
    assert rows == [
        ["round chosen by", "algorithm", "mean", "deviation", "verdict", "note"],
        ["oracle", "fedsgd", "0.5", "0.1", "-", "2 seeds, 20 % of it"],
        ["oracle", "fedcurv", "0.4", "0.2", "within noise", "2 seeds, 20 % of it"],
        ["last", "fedsgd", "", "", "-2.5!", "2 seeds, 20 % of it"],
    ]
    assert csv_text(PLAIN) == "a,b,note\nx,1,\n"


@given(texts)
def test_csv_reads_back_as_it_was(text: str) -> None:
    assert list(csv.reader(io.StringIO(csv_text(one_cell(text)))))[1][:2] == ["x", text]


def test_latex_has_booktabs_rules_groups_a_label_and_the_best_in_bold() -> None:
    lines = latex(GROUPED).splitlines()
    assert lines == [
        r"\begin{table}[htb]",
        r"\caption{OOD loss}",
        r"\label{tab:color-mnist-loss}",
        r"\centering\small",
        r"\begin{tabular}{@{}lrr@{}}",
        r"\toprule",
        r"algorithm & ours & verdict \\",
        r"\midrule",
        r"\multicolumn{3}{@{}l}{\textit{oracle}} \\",
        r"fedsgd & 0.5$\pm$0.1 & - \\",
        r"fedcurv & \textbf{0.4$\pm$0.2} & within noise \\",
        r"\midrule",
        r"\multicolumn{3}{@{}l}{\textit{last}} \\",
        r"fedsgd & - & $-2.5$! \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\begin{flushleft}\footnotesize",
        r"\par 2 seeds, 20 \% of it",
        r"\par second note",
        r"\end{flushleft}",
        r"\end{table}",
    ]


@given(texts, st.booleans())
def test_latex_leaves_no_special_character_of_a_cell_bare(text: str, bold: bool) -> None:
    line = next(line for line in latex(one_cell(text, bold)).splitlines() if line.startswith("x & "))
    body = line.removeprefix("x & ").removesuffix(r" \\")
    bare = re.sub(r"\\[&%$#_{}]", "", body)
    assert not set("&%#_") & set(bare)
    assert bare.count("$") % 2 == 0
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"[~<>±°†σ×]", bare)


def test_latex_gives_long_words_a_paragraph() -> None:
    table = TableData("t", "demo", "T", TWO, ((Cell("w " * 40), Cell("1")),))
    assert r"{@{}p{0.24\linewidth}r@{}}" in latex(table)


def test_tables_are_written_as_markdown_latex_and_a_csv_each(tmp_path: Path) -> None:
    paths = write_tables(tmp_path / "new", [GROUPED, PLAIN])
    assert [str(path.relative_to(tmp_path / "new")) for path in paths] == [
        "tables.md",
        "tables.tex",
        "tables/loss.csv",
        "tables/plain.csv",
    ]
    assert paths[0].read_text() == f"{markdown(GROUPED)}\n{markdown(PLAIN)}"
    assert paths[1].read_text().endswith(f"{latex(GROUPED)}\n{latex(PLAIN)}")
    assert [path.read_text() for path in paths[2:]] == [csv_text(GROUPED), csv_text(PLAIN)]
    assert not list(tmp_path.rglob("*.tmp"))


def test_writing_again_replaces_what_was_there(tmp_path: Path) -> None:
    write_tables(tmp_path, [GROUPED])
    write_tables(tmp_path, [PLAIN])
    assert (tmp_path / "tables.md").read_text() == markdown(PLAIN)


def test_a_folder_that_cannot_be_made_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r".*file/tables.md cannot be written: "):
        write_tables(tmp_path / "file", [PLAIN])
