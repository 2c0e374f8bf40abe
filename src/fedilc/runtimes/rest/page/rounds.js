// The curves as tables: the chosen rounds, and the numbers of every round.

import { marker, shape } from "./chart.js";
import { NONE, count, make, number, percent } from "./format.js";

const PAGE = 100;
const COLUMNS = [
  ["train_loss", "Train loss", number],
  ["validation_loss", "Validation loss", number],
  ["test_loss", "OOD loss", number],
  ["validation_accuracy", "Validation accuracy", percent],
  ["test_accuracy", "OOD accuracy", percent],
  ["penalty", "Penalty", number],
];

function row(name, cells) {
  const element = make("tr");
  const head = make("th");
  head.scope = "row";
  head.append(...name);
  element.append(head, ...cells.map((text) => make("td", "figure", text)));
  return element;
}

function glyph(criterion) {
  const picture = shape("svg", { width: 14, height: 14, "aria-hidden": "true" });
  if (criterion !== "last") picture.append(marker(criterion, 7, 7));
  return picture;
}

/** Show the rounds that oracle and validation choose, and the last. */
export function showChosen(part, history) {
  part.hidden = !history.length;
  const text = (key, place, format) => format(history.columns[key][place] ?? undefined);
  const rows = Object.entries(history.chosen()).filter(([, place]) => place >= 0);
  part.querySelector("tbody").replaceChildren(
    ...rows.map(([criterion, place]) =>
      row(
        [glyph(criterion), criterion],
        [
          count(history.rounds[place]),
          text("test_loss", place, number),
          text("test_accuracy", place, percent),
          text("validation_loss", place, number),
        ],
      ),
    ),
  );
}

/** The table of all rounds, the latest first, one page more per click. */
export class Numbers {
  constructor(details) {
    this.details = details;
    this.table = details.querySelector("table");
    this.more = details.querySelector("button");
    this.shown = PAGE;
    details.addEventListener("toggle", () => this.show(this.history));
    this.more.addEventListener("click", () => {
      this.shown += PAGE;
      this.show(this.history);
    });
  }

  /** Show a history, if the table is open. */
  show(history) {
    this.history = history;
    this.details.hidden = !history?.length;
    if (!history || !this.details.open) return;
    const columns = COLUMNS.filter(([key]) => history.has(key));
    const head = make("tr");
    for (const name of ["Round", ...columns.map(([, title]) => title)]) {
      const title = make("th", "", name);
      title.scope = "col";
      head.append(title);
    }
    this.table.tHead.replaceChildren(head);
    const rows = [];
    for (let i = history.length - 1; i >= Math.max(0, history.length - this.shown); i -= 1) {
      const cells = columns.map(([key, , format]) => {
        const value = history.columns[key][i];
        return value === null ? NONE : format(value);
      });
      rows.push(row([count(history.rounds[i])], cells));
    }
    this.table.tBodies[0].replaceChildren(...rows);
    this.more.hidden = history.length <= this.shown;
  }
}
