// A study over silos: its plan, and the score of each held-out site as it comes, as a forest plot.

import { make, say } from "./format.js";

const WIDTH = 160;
const HEIGHT = 16;
const DIGITS = 3;

/** Return an SVG element with attributes. */
function shape(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Return an interval from 0 to 1 as a line with a dot at the score. */
function interval({ value, low, high }) {
  const middle = HEIGHT / 2;
  const drawn = shape("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
  const line = { stroke: "currentColor", y1: middle, y2: middle };
  drawn.append(shape("line", { ...line, x1: 0, x2: WIDTH, opacity: 0.2 }));
  if (low !== null) drawn.append(shape("line", { ...line, x1: low * WIDTH, x2: high * WIDTH, "stroke-width": 2 }));
  drawn.append(shape("circle", { cx: value * WIDTH, cy: middle, r: 4, fill: "currentColor" }));
  return drawn;
}

export class StudyPart {
  constructor(section, others) {
    Object.assign(this, { section, others });
  }

  /** Show the study of a status; runs have none, and show their curves instead. */
  show(study) {
    this.section.hidden = !study;
    for (const other of this.others) other.hidden = Boolean(study) || other.hidden;
    if (!study) return;
    const known = Object.keys(study.scores).length;
    say(
      this.section.querySelector(".summary"),
      `${study.held_out.length} sites are held out in turn; ${study.methods.join(", ")}; at most ${study.rounds} ` +
        `rounds, ${study.seeds} seed${study.seeds === 1 ? "" : "s"}; ${known} of ${study.held_out.length} scored`,
    );
    say(this.section.querySelector(".metric"), study.metric.replaceAll("_", " "));
    this.section.querySelector("tbody").replaceChildren(...study.held_out.map((site) => this.row(site, study.scores[site])));
  }

  row(site, score) {
    const row = make("tr");
    const name = make("th", "", site);
    name.scope = "row";
    const cell = make("td");
    let text = "not yet";
    if (score && score.value === null) text = `not estimable (${score.reason ?? "too few examples"})`;
    if (score && score.value !== null) {
      const limits = score.low === null ? "" : ` [${score.low.toFixed(DIGITS)}, ${score.high.toFixed(DIGITS)}]`;
      text = `${score.value.toFixed(DIGITS)}${limits}`;
      if (score.value >= 0 && score.value <= 1) cell.append(interval(score));
    }
    row.append(name, make("td", "", score?.method ?? ""), make("td", "", text), cell);
    return row;
  }
}
