// The table of silos: their state, traffic and problems.

import { NONE, ago, bytes, count, make, number, say } from "./format.js";

const ABSENT = ["not joined", "lost", "set aside"];
const MAX_WITHOUT_SCROLLING = 10;
const SINCE = "since the coordinator started";
const COLUMNS = [
  { name: "Silo" },
  { name: "State" },
  { name: "Last seen", key: "last_seen" },
  { name: "Examples", key: "examples", text: count },
  { name: "Train loss", key: "loss", text: number },
  { name: "Bytes up", key: "bytes_received", text: bytes, title: SINCE },
  { name: "Bytes down", key: "bytes_sent", text: bytes, title: SINCE },
  { name: "Strikes", key: "strikes", text: count },
];
const CONTACT = ["last_seen", "bytes_received", "bytes_sent", "strikes"];

const hasProblem = (silo) => ABSENT.includes(silo.state) || silo.strikes > 0 || Boolean(silo.notice);

function cell(tag, role, column) {
  const made = make(tag, column.key ? "figure" : "");
  made.setAttribute("role", role);
  made.dataset.label = column.name;
  if (CONTACT.includes(column.key)) made.classList.add("contact");
  return made;
}

export class SiloTable {
  constructor(section) {
    this.summary = section.querySelector(".summary");
    this.table = section.querySelector("table");
    this.box = section.querySelector(".box");
    this.choice = section.querySelector(".choice");
    this.only = section.querySelector(".choice input");
    this.rows = new Map();
    this.silos = [];
    const head = make("tr");
    head.setAttribute("role", "row");
    for (const column of COLUMNS) {
      const made = cell("th", "columnheader", column);
      made.scope = "col";
      made.textContent = column.name;
      if (column.title) made.title = column.title;
      head.append(made);
    }
    this.table.tHead.append(head);
    this.only.addEventListener("change", () => this.filter());
  }

  /** Show these silos; `now` is the coordinator's time in seconds. */
  show(silos, now, ended) {
    const names = silos.map((silo) => silo.name);
    if (names.join("\n") !== [...this.rows.keys()].join("\n")) this.rebuild(names);
    this.silos = silos;
    const heard = silos.some((silo) => silo.last_seen !== null || silo.strikes > 0);
    this.table.classList.toggle("without-contact", !heard);
    for (const silo of silos) this.fill(this.rows.get(silo.name), silo);
    say(this.summary, this.count(ended ? "in the last round" : "here"));
    this.choice.hidden = silos.length <= MAX_WITHOUT_SCROLLING;
    this.filter();
    this.tick(now);
  }

  rebuild(names) {
    this.rows = new Map(names.map((name) => [name, this.row(name)]));
    this.table.tBodies[0].replaceChildren(...this.rows.values());
    this.box.classList.toggle("high", names.length > MAX_WITHOUT_SCROLLING);
  }

  row(name) {
    const row = make("tr");
    row.setAttribute("role", "row");
    const [first, ...others] = COLUMNS;
    row.append(cell("th", "rowheader", first), ...others.map((column) => cell("td", "cell", column)));
    row.cells[0].scope = "row";
    row.cells[0].textContent = name;
    row.cells[1].append(make("span", "state"), make("span", "reason"));
    return row;
  }

  fill(row, silo) {
    const [state, reason] = row.cells[1].children;
    row.dataset.state = silo.state;
    row.classList.toggle("troubled", hasProblem(silo));
    say(state, silo.state);
    say(reason, silo.notice ?? silo.reason ?? (silo.via ? `through ${silo.via}` : ""));
    COLUMNS.forEach(({ key, text }, i) => text && say(row.cells[i], text(silo[key])));
  }

  /** Return one sentence on how many silos are in which state. */
  count(present) {
    const total = this.silos.length;
    const away = ABSENT.map((state) => [state, this.silos.filter((silo) => silo.state === state).length]);
    const words = away.filter(([, size]) => size > 0).map(([state, size]) => `${count(size)} ${state}`);
    const here = total - away.reduce((sum, [, size]) => sum + size, 0);
    const silos = `${count(total)} ${total === 1 ? "silo" : "silos"}`;
    if (!words.length) return `${silos}, ${total === 1 ? "" : "all "}${present}`;
    return `${silos}: ${[`${count(here)} ${present}`, ...words].join(", ")}`;
  }

  filter() {
    const only = this.only.checked && !this.choice.hidden;
    for (const silo of this.silos) this.rows.get(silo.name).hidden = only && !hasProblem(silo);
  }

  /** Update the time since silos were last seen. */
  tick(now) {
    for (const silo of this.silos) {
      const seen = silo.last_seen;
      say(this.rows.get(silo.name).cells[2], seen === null ? NONE : ago(Math.max(0, now - seen)));
    }
  }
}
