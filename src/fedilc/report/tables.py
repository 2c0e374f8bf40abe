"""A table, its cells, and its four formats: terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from rich import box
from rich.markup import escape
from rich.table import Table

from fedilc.errors import ConfigError, writing
from fedilc.evaluation.significance import PairedTest, spread
from fedilc.storage.files import write_atomically

_TERMINAL, _MIN_WIDTH = 80, 5  # characters
_LONG = 24  # characters, beyond which words in LaTeX get a paragraph column
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


@dataclass(frozen=True)
class Column:
    """A heading; the headings in CSV if that splits the column into several; whether it holds words."""

    title: str
    parts: tuple[str, ...] = ()
    words: bool = False


@dataclass(frozen=True)
class Cell:
    """The text; whether it is the best value; the texts in CSV if that splits the column; and its number.

    The number is the value as printed, so that values that look equal are equally good.
    """

    text: str
    bold: bool = False
    parts: tuple[str, ...] = ()
    number: float | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TableData:
    """A table in no particular format; `console.print` shows it in the terminal.

    Args:
        name: of its CSV file.
        source: what it is about, such as a benchmark; with the name, its label in LaTeX.
        title: one line above it.
        columns: the headings.
        rows: one cell per column.
        notes: lines below it; the first says what it was made from, and goes into every CSV row.
        grouped: whether the first cell of a row names the group of rows that it belongs to.
    """

    name: str
    source: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    grouped: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        source: str,
        title: str,
        columns: Iterable[object],
        rows: Iterable[Iterable[object]],
        notes: Iterable[str] = (),
        *,
        grouped: bool = False,
    ) -> TableData:
        """Return a table.

        Anything that is not a `Column` becomes a right-aligned heading; anything that is not a `Cell`, a
        plain cell.

        >>> TableData.of("sites", "demo", "Sites", [*words("site"), "examples"], [("a", 30)]).rows[0]
        (Cell(text='a', bold=False, parts=()), Cell(text='30', bold=False, parts=()))
        """
        headings = tuple(one if isinstance(one, Column) else Column(str(one)) for one in columns)
        cells = tuple(tuple(one if isinstance(one, Cell) else Cell(str(one)) for one in row) for row in rows)
        return cls(name, source, title, headings, cells, tuple(notes), grouped)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"a row of the table {self.name!r} has {len(row)} cells for {len(self.columns)} columns"
                )

    def __rich__(self) -> Table:
        return rich_table(self)

    @property
    def widths(self) -> list[int]:
        """Return the width of the widest cell of each column, in characters, without a column of groups."""
        columns = zip(*(row[self.grouped :] for row in self.rows), strict=True)
        return [max(len(cell.text) for cell in column) for column in columns] or [0] * len(self.columns)

    @property
    def is_wide(self) -> bool:
        """Return whether its cells are together wider than a terminal of 80 characters."""
        return sum(2 + width for width in self.widths) > _TERMINAL

    def groups(self) -> list[tuple[str, list[tuple[Cell, ...]]]]:
        """Return the rows per first cell, without that cell; all under "" if rows are not grouped."""
        if not self.grouped:
            return [("", list(self.rows))]
        runs = groupby(self.rows, key=lambda row: row[0].text)
        return [(name, [row[1:] for row in rows]) for name, rows in runs]


def words(*titles: str) -> tuple[Column, ...]:
    """Return columns of words, which are aligned to the left."""
    return tuple(Column(title, words=True) for title in titles)


def rich_table(table: TableData, *, all_notes: bool = True) -> Table:
    """Return the table for the terminal, each group below a line with its name.

    If the cells are wider than 80 characters together, all columns but the first break at every space.
    `all_notes=False` keeps the first note only.
    """
    rich = Table(
        title=escape(table.title),
        title_justify="left",
        title_style="bold",
        header_style="",
        caption="\n".join(escape(note) for note in table.notes[: None if all_notes else 1]),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    gap = "\n" if table.is_wide else " "
    groups = [
        (name, [(first, *(replace(c, text=c.text.replace(" ", gap)) for c in rest)) for first, *rest in rows])
        for name, rows in table.groups()
    ]
    columns = table.columns[table.grouped :]
    titled = sum(2 + max(len(c.title), width) for c, width in zip(columns, table.widths, strict=False))
    for number, column in enumerate(columns):
        lines = [line for _, rows in groups for row in rows for line in row[number].text.split("\n")]
        width = max([_MIN_WIDTH, *map(len, lines)]) if titled > _TERMINAL else _TERMINAL
        rich.add_column(
            escape("\n".join(wrap(column.title, width, break_long_words=False))),
            justify="left" if column.words else "right",
            no_wrap=number > 0,
            overflow="ellipsis" if number else "fold",
        )
    for name, rows in groups:
        if table.grouped:
            rich.add_section()
            rich.add_row(f"[bold]{escape(name)}[/]")
        for row in rows:
            rich.add_row(*map(_rich_cell, row))
    return rich


def _rich_cell(cell: Cell) -> str:
    return f"[bold green]{escape(cell.text)}[/]" if cell.bold else escape(cell.text)


def markdown(table: TableData) -> str:
    """Return a heading, a pipe table, and the notes as a list.

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
    """Return the rows as CSV: means and deviations in columns of their own, the first note in the last.

    >>> columns = (Column("a"), Column("loss", ("mean", "deviation")))
    >>> row = (Cell("x"), Cell("0.5±0.1", parts=("0.5", "0.1")))
    >>> print(csv_text(TableData("t", "demo", "Losses", columns, (row,), ("tiny",))))
    a,mean,deviation,note
    x,0.5,0.1,tiny
    """
    headings = [part for column in table.columns for part in column.parts or (column.title,)]
    rows = []
    for row in table.rows:
        values: list[str] = []
        for column, cell in zip(table.columns, row, strict=True):
            parts = cell.parts if column.parts else (cell.text,)
            values += [*parts, *[""] * (len(column.parts or parts) - len(parts))]
        rows.append([*values, table.notes[0] if table.notes else ""])
    return csv_lines([*headings, "note"], rows)


def csv_lines(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, below their headings."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()


def latex(table: TableData) -> str:
    """Return a floating LaTeX table with the rules of the package booktabs."""
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
        r"\centering" + (r"\footnotesize" if table.is_wide else r"\small"),
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
    """Write tables.md, tables.tex and tables/NAME.csv, each atomically, and return their paths."""
    contents = {
        folder / "tables.md": "\n".join(markdown(table) for table in tables),
        folder / "tables.tex": "% needs \\usepackage{booktabs}\n"
        + "\n".join(latex(table) for table in tables),
    }
    contents |= {folder / "tables" / f"{table.name}.csv": csv_text(table) for table in tables}
    for path, text in contents.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
    return list(contents)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Return the text with a backslash before each mark; an underscore inside a word is harmless."""
    return re.sub(r"[\\|*<`\[\]]|(?<!\w)_|_(?!\w)", lambda mark: "\\" + mark[0], " ".join(text.split()))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _latex_columns(table: TableData) -> str:
    """Return one letter per column, or a paragraph if words would run over the page."""
    columns = zip(table.columns[table.grouped :], table.widths, strict=False)
    return "".join(
        "r" if not column.words else r"p{0.24\linewidth}" if width > _LONG else "l"
        for column, width in columns
    )


def _latex_cell(cell: Cell) -> str:
    # Mathematics mode prints a minus sign, which is longer than a hyphen.
    signed = re.fullmatch(r"([+-][\d.]+)(.*)", cell.text)
    text = f"${signed[1]}${_latex(signed[2])}" if signed else _latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.bold else text


NOTHING = Cell("-")


def mean_cell(values: Sequence[float], scale: float = 1.0, runs: int | None = None) -> Cell:
    """Return mean and deviation; one value has no deviation.

    >>> mean_cell([0.5, 0.6]).text, mean_cell([0.5]).text, mean_cell([0.5], runs=2).text
    ('0.550±0.071', '0.500', '0.500 (1 of 2 seeds)')
    """
    if not values:
        return NOTHING
    mean, deviation = (scale * number for number in spread(values))
    missing = f" ({len(values)} of {runs} seeds)" if runs and runs > len(values) else ""
    return spread_cell(mean, deviation if len(values) > 1 else None, missing)


def spread_cell(mean: float, deviation: float | None, missing: str = "") -> Cell:
    """Return a mean, with its deviation if there is one."""
    if deviation is None:
        return Cell(f"{mean:.3f}{missing}", parts=(f"{mean:.6g}", ""), number=round(mean, 3))
    parts = (f"{mean:.6g}", f"{deviation:.6g}")
    return Cell(f"{mean:.3f}±{deviation:.3f}{missing}", parts=parts, number=round(mean, 3))


def with_best(cells: Mapping[str, Cell], lower: bool) -> dict[str, Cell]:
    """Return the cells with the best mean, as it is printed, in bold, if at least two have a mean.

    >>> cells = with_best({"a": mean_cell([0.5001]), "b": mean_cell([0.5002]), "c": NOTHING}, True)
    >>> [cell.bold for cell in cells.values()]
    [True, True, False]
    """
    means = {name: cell.number for name, cell in cells.items() if cell.number is not None}
    if len(means) < 2:
        return dict(cells)
    best = (min if lower else max)(means.values())
    return {name: replace(cell, bold=means.get(name) == best) for name, cell in cells.items()}


def verdict_cells(test: PairedTest | None) -> tuple[Cell, Cell]:
    """Return the verdict of a test, and its two p-values."""
    if test is None:
        return NOTHING, NOTHING
    verdict = Cell(test.verdict, parts=(test.verdict, f"{test.difference:.6g}"))
    if test.t_p is None:
        return verdict, NOTHING
    digits = (f"{test.t_p:.4g}", "" if test.flip_p is None else f"{test.flip_p:.4g}")
    return verdict, Cell(f"{p_text(test.t_p)}/{p_text(test.flip_p)}", parts=digits)


def p_text(value: float | None) -> str:
    """Return a p-value as it is usually printed, without its first zero.

    >>> p_text(0.0312), p_text(1e-5), p_text(1.0)
    ('.031', '<.001', '1.000')
    """
    if value is None:
        return "-"
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
