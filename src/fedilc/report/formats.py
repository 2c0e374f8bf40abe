"""One table, written for the terminal, as Markdown, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from rich.markup import escape
from rich.table import Table

from fedilc.errors import ConfigError
from fedilc.federation.tensor_files import write_atomically
from fedilc.report.tables import empty_table

_TERMINAL, _NARROWEST = 80, 5
_LONG, _PARAGRAPH = 24, 0.24


@dataclass(frozen=True)
class Column:
    """A heading; where CSV splits the column into several, their headings; whether it holds words."""

    title: str
    parts: tuple[str, ...] = ()
    words: bool = False


@dataclass(frozen=True)
class Cell:
    """What a reader sees; whether it is the best; and its parts where CSV splits the column."""

    text: str
    bold: bool = False
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableData:
    """A table, whatever it is written as.

    Args:
        name: for its file and those who look for it.
        source: what it is about, such as a benchmark; with the name, its label in LaTeX.
        title: one line above it.
        columns: the headings.
        rows: a cell for each column.
        notes: lines below it; the first says what it was made from, and goes into every CSV row.
        grouped: rows with the same first cell belong together under it.
    """

    name: str
    source: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    grouped: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"a row of the table {self.name!r} has {len(row)} cells for {len(self.columns)} columns"
                )

    @property
    def width(self) -> int:
        """How many characters wide its cells make it, without a column of groups."""
        columns = zip(*(row[self.grouped :] for row in self.rows), strict=True)
        return sum(2 + max(len(cell.text) for cell in column) for column in columns)

    def groups(self) -> list[tuple[str, list[tuple[Cell, ...]]]]:
        """The rows under each first cell, without it; all under "" where rows are not grouped."""
        if not self.grouped:
            return [("", list(self.rows))]
        runs = groupby(self.rows, key=lambda row: row[0].text)
        return [(name, [row[1:] for row in rows]) for name, rows in runs]


def rich_table(table: TableData, *, all_notes: bool = True) -> Table:
    """For the terminal; a group has a line of its own. `all_notes=False` keeps the first note only.

    Where a table would be wider than 80 characters, all but its first column break at every space.
    """
    shown = empty_table(table.title)
    shown.collapse_padding = True
    columns = list(zip(*(row[table.grouped :] for row in table.rows), strict=True))
    gap = "\n" if table.width > _TERMINAL else " "
    for number, column in enumerate(table.columns[table.grouped :]):
        texts = (
            [cell.text.replace(" ", gap if number else " ") for cell in columns[number]] if columns else []
        )
        widest = max(len(line) for text in (*texts, "-" * _NARROWEST) for line in text.split("\n"))
        title = escape("\n".join(wrap(column.title, widest, break_long_words=False)))
        shown.add_column(title, justify="left" if column.words else "right", no_wrap=number > 0)
    for name, rows in table.groups():
        if table.grouped:
            shown.add_section()
            shown.add_row(f"[bold]{escape(name)}[/]")
        for first, *rest in rows:
            broken = (Cell(cell.text.replace(" ", gap), cell.bold) for cell in rest)
            shown.add_row(*(_rich_cell(cell) for cell in (first, *broken)))
    shown.caption = "\n".join(escape(note) for note in table.notes[: None if all_notes else 1])
    return shown


def _rich_cell(cell: Cell) -> str:
    return f"[bold green]{escape(cell.text)}[/]" if cell.bold else escape(cell.text)


def markdown(table: TableData) -> str:
    """A heading, a pipe table, and the notes as a list.

    >>> columns = (Column("a", words=True), Column("b"))
    >>> print(markdown(TableData("t", "demo", "Losses", columns, ((Cell("x"), Cell("1", True)),))))
    ## Losses
    <BLANKLINE>
    | a | b |
    |---|--:|
    | x | **1** |
    """
    rule = "|".join("---" if column.words else "--:" for column in table.columns)
    lines = [f"## {_markdown(table.title)}", "", _pipes([_markdown(c.title) for c in table.columns])]
    lines.append(f"|{rule}|")
    for row in table.rows:
        texts = (_markdown(cell.text) for cell in row)
        lines.append(_pipes([f"**{t}**" if cell.bold else t for t, cell in zip(texts, row, strict=True)]))
    if table.notes:
        lines += ["", *(f"- {_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def csv_text(table: TableData) -> str:
    """One row a row, numbers apart from their deviations, and the first note as last column.

    >>> columns = (Column("a"), Column("loss", ("mean", "deviation")))
    >>> row = (Cell("x"), Cell("0.5±0.1", parts=("0.5", "0.1")))
    >>> print(csv_text(TableData("t", "demo", "Losses", columns, (row,), ("tiny",))))
    a,mean,deviation,note
    x,0.5,0.1,tiny
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings = [part for column in table.columns for part in column.parts or (column.title,)]
    writer.writerow([*headings, "note"])
    for row in table.rows:
        values: list[str] = []
        for column, cell in zip(table.columns, row, strict=True):
            parts = cell.parts if column.parts else (cell.text,)
            values += [*parts, *[""] * (len(column.parts or parts) - len(parts))]
        writer.writerow([*values, table.notes[0] if table.notes else ""])
    return text.getvalue()


def latex(table: TableData) -> str:
    """A floating table with booktabs' rules; needs `\\usepackage{booktabs}`."""
    columns = table.columns[table.grouped :]
    body: list[str] = []
    for name, rows in table.groups():
        if table.grouped:
            rule = [r"\midrule"] if body else []
            body += [*rule, rf"\multicolumn{{{len(columns)}}}{{@{{}}l}}{{\textit{{{_latex(name)}}}}} \\"]
        body += [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in rows]
    notes = [rf"\par {_latex(note)}" for note in table.notes]
    lines = [
        r"\begin{table}[htb]",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\label{{tab:{table.source}-{table.name}}}",
        r"\centering" + (r"\footnotesize" if table.width > _TERMINAL else r"\small"),
        rf"\begin{{tabular}}{{@{{}}{_latex_columns(table)}@{{}}}}",
        r"\toprule",
        " & ".join(_latex(column.title) for column in columns) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\begin{flushleft}\footnotesize", *notes, r"\end{flushleft}"] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def write_tables(folder: Path, tables: Sequence[TableData]) -> list[Path]:
    """Write tables.md, tables.tex and tables/NAME.csv, each as a whole or not at all."""
    contents = {
        folder / "tables.md": "\n".join(markdown(table) for table in tables),
        folder / "tables.tex": "% needs \\usepackage{booktabs}\n"
        + "\n".join(latex(table) for table in tables),
    }
    contents |= {folder / "tables" / f"{table.name}.csv": csv_text(table) for table in tables}
    for path, text in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise ConfigError(f"the table {path} cannot be written: {error.strerror or error}") from error
    return list(contents)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Text as it is: an underscore inside a word is harmless, other marks get a backslash."""
    return re.sub(r"[\\|*<`\[\]]|(?<!\w)_|_(?!\w)", lambda found: "\\" + found[0], " ".join(text.split()))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "°": r"$^{\circ}$",
    "†": r"$^{\dagger}$",
    "σ": r"$\sigma$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _latex_columns(table: TableData) -> str:
    """l, r, or a paragraph where words would run over the page."""
    found = ""
    for number, column in enumerate(table.columns[table.grouped :], start=table.grouped):
        longest = max((len(row[number].text) for row in table.rows), default=0)
        wide = rf"p{{{_PARAGRAPH}\linewidth}}" if longest > _LONG else "l"
        found += wide if column.words else "r"
    return found


def _latex_cell(cell: Cell) -> str:
    # A hyphen is shorter than a minus.
    signed = re.fullmatch(r"([+-][\d.]+)(.*)", cell.text)
    text = f"${signed[1]}${_latex(signed[2])}" if signed else _latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.bold else text
