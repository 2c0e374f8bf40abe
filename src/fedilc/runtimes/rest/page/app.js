// The page: asks for a token if one is needed, follows the run, and shows what it hears.

import { Curves } from "./curves.js";
import { Door, forget, kept } from "./door.js";
import { Feed, Refused, ask } from "./feed.js";
import { History } from "./history.js";
import { Layers } from "./layers.js";
import { Numbers, showChosen } from "./rounds.js";
import { SiloTable } from "./silos.js";
import { count, duration, make, pace, say } from "./words.js";

const QUIET_SECONDS = 20;
const CONNECTION = {
  connecting: "connecting",
  closed: "a token is needed",
  live: "live",
  lost: "reconnecting",
  ended: "the run has ended",
};
const find = (selector) => document.querySelector(selector);

class Page {
  constructor() {
    this.history = new History();
    this.status = null;
    this.lag = 0;
    this.announced = { round: 0, at: -Infinity };
    this.curves = new Curves(document);
    this.silos = new SiloTable(find("#silos"));
    this.layers = new Layers(find("#layers"));
    this.numbers = new Numbers(find("#numbers"));
    this.pending = new Set();
    this.scheduled = false;
    setInterval(() => this.tick(), 1000);
  }

  /** What a Feed calls. */
  listener() {
    return {
      about: (about) => this.about(about),
      history: (records) => this.change("history", () => this.history.replace(records)),
      record: (record) => this.change("history", () => this.history.add(record)),
      status: (status, lag) => this.change("status", () => this.hear(status, lag)),
      lost: (reason) => this.lost(reason),
    };
  }

  /** Change something now; draw it once before the next picture, however much changes until then. */
  change(what, act) {
    act();
    this.pending.add(what);
    if (!this.scheduled) requestAnimationFrame(() => this.draw());
    this.scheduled = true;
  }

  hear(status, lag) {
    Object.assign(this, { status, lag, heard: Date.now() });
    find("#trouble").hidden = true;
    this.connection(status.outcome === null ? "live" : "ended");
    const round = Math.max(status.round, status.completed);
    const ended = status.outcome === null ? "" : " (ended)";
    document.title = `${round}/${status.rounds}${ended} · ${status.run ?? "FedILC"}`;
    this.announce(round);
  }

  lost(reason) {
    this.connection("lost");
    const refused = reason instanceof Refused;
    const said = refused ? `The coordinator refuses: ${reason.message}.` : "The coordinator does not answer.";
    const since = this.heard ? ` What is shown is from ${new Date(this.heard).toLocaleTimeString()}.` : "";
    say(find("#trouble p"), `${said} The page keeps trying.${since}`);
    find("#trouble").hidden = false;
  }

  connection(state) {
    find("#connection").dataset.state = state;
    say(find("#connection .words"), CONNECTION[state]);
  }

  /** Show nothing of the run until somebody may see it. */
  close() {
    this.status = null;
    this.connection("closed");
    find("#run").hidden = true;
    find("#trouble").hidden = true;
  }

  /** Tell screen readers of new rounds, now and then; of the end, always. */
  announce(round) {
    const { outcome, rounds } = this.status;
    const now = performance.now();
    const late = now - this.announced.at > 1000 * QUIET_SECONDS && round > this.announced.round;
    if (!late && outcome === null) return;
    this.announced = { round, at: now };
    say(find("#news"), outcome === null ? `Round ${round} of ${rounds}` : `The run has ended: ${outcome}`);
  }

  draw() {
    this.scheduled = false;
    if (!this.status) return;
    find("#run").hidden = false;
    if (this.pending.has("status")) this.drawStatus();
    if (this.pending.has("history")) this.drawHistory();
    this.pending.clear();
  }

  drawHistory() {
    this.curves.show(this.history, this.status.rounds);
    showChosen(find("#chosen"), this.history);
    this.numbers.show(this.history);
    this.layers.show(this.history.last);
  }

  drawStatus() {
    const { status } = this;
    say(find("#name"), status.run ?? "A run without a name");
    say(find("#algorithm"), status.algorithm ?? "");
    say(find("#round"), count(Math.max(status.round, status.completed)));
    say(find("#rounds"), count(status.rounds));
    say(find("#phase"), status.phase);
    say(find("#pace"), pace(status.seconds_a_round ?? undefined));
    find("#pace-fact").hidden = status.seconds_a_round === null;
    find("#left-fact").hidden = status.seconds_left === null;
    find("#progress").max = Math.max(1, status.rounds);
    find("#progress").value = status.completed;
    find("#outcome").hidden = status.outcome === null;
    say(find("#outcome"), `The run has ended: ${status.outcome}.`);
    this.silos.show(status.silos, (Date.now() - this.lag) / 1000, status.outcome !== null);
    this.tick();
  }

  /** Let the times go on that nobody tells us. */
  tick() {
    if (!this.status) return;
    this.silos.tick((Date.now() - this.lag) / 1000);
    const passed = (Date.now() - this.heard) / 1000;
    say(find("#left"), `about ${duration(Math.max(0, this.status.seconds_left - passed))}`);
  }

  /** Show the settings to who wants to know them. */
  about({ manifest, hash }) {
    const simple = Object.entries(manifest).filter(([, value]) => typeof value !== "object");
    const facts = hash ? [["manifest hash", hash], ...simple] : simple;
    find(".settings").replaceChildren(
      ...facts.map(([key, value]) => {
        const item = make("div");
        item.append(make("dt", "", key.replaceAll("_", " ")), make("dd", "", String(value)));
        return item;
      }),
    );
  }
}

/** A token that somebody gives, after none or a wrong one was refused. */
async function admitted(page, door, wrong) {
  forget();
  page.close();
  const given = await door.open(wrong);
  find("#content").focus();
  return given;
}

/** Whether viewers need a token; asked first, so that no request is made that must be refused. */
async function needsToken() {
  try {
    return (await (await ask("v1/health", null)).json()).viewer_token;
  } catch {
    return false; // the feed says what is wrong, and tries again
  }
}

async function start() {
  const page = new Page();
  const door = new Door(find("#door"));
  let feed = null;
  const nudge = () => feed?.nudge();
  find("#trouble button").addEventListener("click", nudge);
  window.addEventListener("online", nudge);
  find("#forget").addEventListener("click", () => {
    forget();
    location.reload();
  });
  let token = kept();
  if (token === null && (await needsToken())) token = await admitted(page, door, false);
  for (;;) {
    find("#forget").hidden = !token;
    page.connection("connecting");
    feed = new Feed(token, page.listener());
    try {
      await feed.follow();
      return;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      token = await admitted(page, door, token !== null);
    }
  }
}

start();
