// The three charts and their shared cursor, which the pointer or the keyboard moves; else it is at the last round.

import { Chart, swatch } from "./chart.js";
import { count, make, number, percent, say } from "./format.js";

const share = (value, ticks) => `${Number((100 * value).toFixed(ticks[1] - ticks[0] < 0.0099 ? 1 : 0))} %`;
const CHARTS = {
  loss: {
    title: "Loss",
    series: [
      { key: "train_loss", kind: "train", name: "train" },
      { key: "validation_loss", kind: "validation", name: "validation" },
      { key: "test_loss", kind: "test", name: "OOD" },
    ],
    text: number,
  },
  accuracy: {
    title: "Accuracy",
    series: [
      { key: "validation_accuracy", kind: "validation", name: "validation" },
      { key: "test_accuracy", kind: "test", name: "OOD" },
    ],
    text: percent,
    format: share,
  },
  penalty: {
    title: "Penalty",
    series: [{ key: "penalty", kind: "train", name: "penalty" }],
    text: number,
  },
};

/** Return whether values need a logarithmic axis: all above 0, the largest far above the smallest. */
function spansDecades(values) {
  const numbers = values.filter((value) => value !== null);
  const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  return least > 0 && numbers.reduce((a, b) => Math.max(a, b), 0) > 10 * least;
}

/** A chart, and above it a legend with the values at the cursor. */
class Panel {
  constructor(section, options, onRound) {
    Object.assign(this, options, { section, legend: section.querySelector(".legend") });
    this.chart = new Chart(section.querySelector(".chart"), options.series, onRound);
    this.at = section.querySelector(".at");
    this.values = options.series.map((one) => {
      const item = make("li");
      item.append(swatch(one.kind), make("span", "label", one.name), make("span", "value"));
      return item;
    });
    this.legend.append(...this.values);
  }

  summary(history) {
    const parts = this.series.filter(({ key }) => history.has(key)).map(({ key, name }) => {
      const low = history.lowest(key);
      const last = history.columns[key].findLastIndex((value) => value !== null);
      const value = (place) => `${this.text(history.columns[key][place])} in round ${history.rounds[place]}`;
      return `${name} ${value(last)}, lowest ${value(low)}`;
    });
    return `${this.title} over ${count(history.length)} rounds. Latest: ${parts.join("; ")}.`;
  }

  draw(history, options) {
    this.chart.draw(history, { ...options, format: this.format, summary: this.summary(history) });
  }

  /** Show the values of the round at the cursor, or of the last round. */
  read(history, round) {
    this.legend.hidden = !history.length;
    this.at.hidden = !history.length;
    if (!history.length) return;
    const place = round === null ? history.length - 1 : history.place(round);
    say(this.at, `round ${count(history.rounds[place])}`);
    this.series.forEach(({ key }, i) => {
      this.values[i].hidden = !history.has(key);
      say(this.values[i].lastChild, this.text(history.columns[key][place] ?? undefined));
    });
    this.chart.point(round);
  }

  /** Return the values at a round as a sentence. */
  sentence(history, round) {
    const place = history.place(round);
    const measured = this.series.filter(({ key }) => history.columns[key][place] !== null);
    return measured.map(({ key, name }) => `${name} ${this.text(history.columns[key][place])}`).join(", ");
  }
}

export class Curves {
  constructor(page) {
    this.reader = page.querySelector("#reader");
    this.log = page.querySelector("#log");
    this.beside = page.querySelector("#beside");
    this.cursor = null;
    const onRound = (round) => this.move(round ?? this.pinned());
    const panel = ([id, options]) => new Panel(page.querySelector(`#${id}`), options, onRound);
    this.panels = Object.entries(CHARTS).map(panel);
    this.reader.addEventListener("input", () => this.move(this.pinned()));
    this.reader.addEventListener("focus", () => this.move(this.pinned()));
    this.reader.addEventListener("blur", () => this.move(null));
    this.log.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(page.querySelector("#loss .chart"));
  }

  /** Return the round of the slider while it has the focus, else null. */
  pinned() {
    return document.activeElement === this.reader ? Number(this.reader.value) : null;
  }

  show(history, total) {
    Object.assign(this, { history, total });
    this.draw();
  }

  draw() {
    const { history } = this;
    if (!history) return;
    const [loss, accuracy, penalty] = this.panels;
    accuracy.section.hidden = !["validation_accuracy", "test_accuracy"].some((key) => history.has(key));
    penalty.section.hidden = !history.has("penalty");
    this.beside.hidden = accuracy.section.hidden && penalty.section.hidden;
    this.reader.parentElement.hidden = history.length < 2;
    const { oracle, validation } = history.chosen();
    const marks = [
      { place: oracle, key: "test_loss", criterion: "oracle" },
      { place: validation, key: "validation_loss", criterion: "validation" },
    ].filter(({ place }) => place >= 0);
    loss.draw(history, { log: this.log.checked, total: this.total, marks });
    if (!accuracy.section.hidden) accuracy.draw(history, { total: this.total });
    const log = spansDecades(history.columns.penalty);
    if (!penalty.section.hidden) penalty.draw(history, { log, total: this.total });
    this.alignReader(loss.chart.frame);
    this.move(this.cursor);
  }

  alignReader(frame) {
    if (!this.history.length || !frame) return;
    const last = this.history.rounds.at(-1);
    this.reader.min = this.history.rounds[0];
    this.reader.max = last;
    if (this.pinned() === null) this.reader.value = last;
    const end = frame.left + ((last - frame.from) / (frame.to - frame.from)) * (frame.right - frame.left);
    this.reader.style.marginLeft = `${frame.left - 8}px`;
    this.reader.style.width = `${end - frame.left + 16}px`;
  }

  /** Move the cursor of all charts to a round; null lets it follow the run. */
  move(round) {
    this.cursor = round;
    if (!this.history) return;
    for (const panel of this.panels) panel.read(this.history, round);
    if (!this.history.length) return;
    const at = round ?? this.history.rounds.at(-1);
    this.reader.setAttribute("aria-valuetext", `round ${at}: ${this.panels[0].sentence(this.history, at)}`);
  }
}
