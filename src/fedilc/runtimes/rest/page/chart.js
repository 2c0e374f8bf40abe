// Draw curves over rounds as SVG, at their size on the screen.

import { bounds, linearTicks, logTicks, roundTicks, scale, tickText } from "./scales.js";

const SVG = "http://www.w3.org/2000/svg";

/** Return a new SVG element. */
export function shape(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

/** Return a curve's points; of those in one column of pixels, only its ends and extremes. */
function decimated(points, columns) {
  if (points.length <= 2 * columns) return points;
  const kept = [];
  for (let start = 0, end = 0; start < points.length; start = end) {
    const column = Math.floor(points[start][0]);
    let [low, high] = [start, start];
    for (end = start; end < points.length && Math.floor(points[end][0]) === column; end += 1) {
      if (points[end][1] < points[low][1]) low = end;
      if (points[end][1] > points[high][1]) high = end;
    }
    const places = new Set([start, Math.min(low, high), Math.max(low, high), end - 1]);
    for (const place of places) kept.push(points[place]);
  }
  return kept;
}

/** Return a sample of a curve's line, for a legend. */
export function swatch(kind) {
  const picture = shape("svg", { class: "swatch", width: 26, height: 10, "aria-hidden": "true" });
  picture.append(shape("line", { class: `curve ${kind}`, x1: 1, x2: 25, y1: 5, y2: 5 }));
  return picture;
}

/** Return the marker of a criterion: a diamond or a disc, to differ not only in colour. */
export function marker(criterion, x, y) {
  const diamond = `M${x} ${y - 6}l6 6l-6 6l-6 -6z`;
  if (criterion === "oracle") return shape("path", { class: "mark test", d: diamond });
  return shape("circle", { class: "mark validation", cx: x, cy: y, r: 5 });
}

export class Chart {
  /** `series` are {key, kind, name}; `onRound` is called with the round under the pointer, or null. */
  constructor(holder, series, onRound) {
    this.holder = holder;
    this.series = series;
    this.cursor = shape("g", { class: "cursor" });
    this.picture = shape("svg", { role: "img", focusable: "false" });
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    holder.append(this.picture, this.empty);
    this.picture.addEventListener("pointermove", (event) => onRound(this.roundAt(event)));
    this.picture.addEventListener("pointerdown", (event) => onRound(this.roundAt(event)));
    this.picture.addEventListener("pointerleave", () => onRound(null));
  }

  roundAt(event) {
    if (!this.history?.length) return null;
    const x = event.clientX - this.picture.getBoundingClientRect().left;
    const { left, right, from, to } = this.frame;
    const round = from + ((x - left) / (right - left)) * (to - from);
    return this.history.rounds[this.history.place(round)];
  }

  /** Draw everything; `marks` are {place, key, criterion}. */
  draw(history, { log = false, format, total = Infinity, marks = [], summary = "" } = {}) {
    this.history = history;
    this.picture.setAttribute("aria-label", summary);
    const shown = this.series.filter(({ key }) => history.has(key));
    const all = shown.flatMap(({ key }) => history.columns[key]);
    this.log = log;
    const range = bounds(all, log);
    this.picture.toggleAttribute("hidden", !range);
    this.empty.hidden = Boolean(range);
    this.empty.textContent = history.length ? "Nothing was measured yet." : "No round is complete yet.";
    if (!range) return;
    this.measure(history, range, total, format);
    const curves = shown.map((one) => this.curve(one));
    this.picture.replaceChildren(this.axes(), ...curves, this.marks(marks), this.cursor);
  }

  measure(history, range, total, format) {
    const width = Math.max(200, this.holder.clientWidth);
    const height = Math.max(120, this.holder.clientHeight);
    const ticks = (this.log ? logTicks : linearTicks)(...range, Math.max(3, Math.floor(height / 44)));
    const texts = ticks.map((tick) => (format ? format(tick, ticks) : tickText(tick, ticks)));
    const [low, high] = this.log ? range : [ticks[0], ticks.at(-1)];
    const widest = Math.max(2, ...texts.map((text) => text.length));
    const [left, right, top, bottom] = [14 + 6.6 * widest, width - 14, 10, height - 26];
    const from = history.rounds[0];
    const to = Math.max(history.rounds.at(-1), from + Math.max(1, Math.min(9, total - from)));
    this.frame = { left, right, top, bottom, from, to, ticks, texts };
    this.x = scale(from, to, left, right);
    this.y = scale(low, high, bottom, top, this.log);
    for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) {
      this.picture.setAttribute(key, value);
    }
  }

  axes() {
    const { left, right, bottom, from, to, ticks, texts } = this.frame;
    const group = shape("g", { class: "axes", "aria-hidden": "true" });
    ticks.forEach((tick, i) => {
      const y = this.y(tick);
      group.append(shape("line", { x1: left, x2: right, y1: y, y2: y }));
      group.append(shape("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, texts[i]));
    });
    const rounds = roundTicks(from, to, Math.max(2, Math.floor((right - left) / 56)));
    if (rounds[0] > from && this.x(rounds[0]) - left > 30) rounds.unshift(from);
    for (const round of rounds) {
      const text = round.toLocaleString("en");
      const anchor = this.x(round) + 4 * text.length > right + 12 ? "end" : "middle";
      group.append(shape("text", { x: this.x(round), y: bottom + 18, "text-anchor": anchor }, text));
    }
    return group;
  }

  points(key) {
    const { rounds, columns } = this.history;
    const points = [];
    columns[key].forEach((value, i) => {
      if (value !== null && !(this.log && value <= 0)) points.push([this.x(rounds[i]), this.y(value)]);
    });
    return points;
  }

  curve({ key, kind }) {
    const points = decimated(this.points(key), this.frame.right - this.frame.left);
    if (points.length === 1) {
      return shape("circle", { class: `point ${kind}`, cx: points[0][0], cy: points[0][1], r: 3 });
    }
    const path = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    return shape("path", { class: `curve ${kind}`, d: path ? `M${path}` : "" });
  }

  marks(marks) {
    const group = shape("g", { "aria-hidden": "true" });
    const drawn = this.series.flatMap(({ key }) => this.points(key));
    for (const { place, key, criterion } of marks) {
      const [round, value] = [this.history.rounds[place], this.history.columns[key][place]];
      if (this.log && value <= 0) continue;
      const [x, y] = [this.x(round), this.y(value)];
      const text = `${criterion}: round ${round.toLocaleString("en")}`;
      const half = 3.4 * text.length;
      const middle = Math.min(Math.max(x, this.frame.left + half + 4), this.frame.right - half);
      const level = this.bestLevel(drawn, middle, half, [y + 21, y - 11, y + 37, y - 27]);
      for (let i = -half; i <= half; i += 2) drawn.push([middle + i, level - 4]);
      const where = { class: "name", x: middle, y: level, "text-anchor": "middle" };
      group.append(marker(criterion, x, y), shape("text", where, text));
    }
    return group;
  }

  /** Return the level for a text that covers the fewest drawn points. */
  bestLevel(drawn, middle, half, levels) {
    const near = drawn.filter(([x]) => Math.abs(x - middle) < half);
    const covered = (level) => near.filter(([, y]) => Math.abs(y - level + 4) < 10).length;
    const inside = levels.filter((level) => level > this.frame.top + 10 && level < this.frame.bottom - 2);
    const better = (best, level) => (covered(level) < covered(best) ? level : best);
    return inside.reduce(better, inside[0] ?? levels[0]);
  }

  /** Show the cursor at a round; null hides it. */
  point(round) {
    this.cursor.replaceChildren();
    if (round === null || !this.history?.length || this.picture.hasAttribute("hidden")) return;
    const place = this.history.place(round);
    const x = this.x(this.history.rounds[place]);
    this.cursor.append(shape("line", { x1: x, x2: x, y1: this.frame.top, y2: this.frame.bottom }));
    for (const { key, kind } of this.series) {
      const value = this.history.columns[key][place];
      if (value === null || (this.log && value <= 0)) continue;
      this.cursor.append(shape("circle", { class: `point ${kind}`, cx: x, cy: this.y(value), r: 4 }));
    }
  }
}
