// The page: ask for a token if one is needed, follow the run, and show it.

import { Curves } from "./curves.js";
import { Feed, Refused, ask } from "./feed.js";
import { History } from "./history.js";
import { Layers } from "./layers.js";
import { Numbers, showChosen } from "./rounds.js";
import { SiloTable } from "./silos.js";
import { StudyPart } from "./study.js";
import { TokenForm, forget, stored } from "./token.js";
import { count, duration, make, pace, say } from "./format.js";

const ANNOUNCE_SECONDS = 20;
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
    this.study = new StudyPart(find("#study"), [find("#curves"), find("#pace-fact")]);
    this.numbers = new Numbers(find("#numbers"));
    this.pending = new Set();
    this.scheduled = false;
    setInterval(() => this.tick(), 1000);
  }

  /** Return the functions that a Feed calls. */
  listener() {
    return {
      about: (about) => this.about(about),
      history: (records) => this.change("history", () => this.history.replace(records)),
      record: (record) => this.change("history", () => this.history.add(record)),
      status: (status, lag) => this.change("status", () => this.receive(status, lag)),
      lost: (reason) => this.lost(reason),
    };
  }

  /** Change something now; draw it once before the next frame, however much changes until then. */
  change(what, act) {
    act();
    this.pending.add(what);
    if (!this.scheduled) requestAnimationFrame(() => this.draw());
    this.scheduled = true;
  }

  receive(status, lag) {
    Object.assign(this, { status, lag, receivedAt: Date.now() });
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
    const problem = refused ? `The coordinator refuses: ${reason.message}.` : "The coordinator does not respond.";
    const since = this.receivedAt ? ` What is shown is from ${new Date(this.receivedAt).toLocaleTimeString()}.` : "";
    say(find("#trouble p"), `${problem} The page keeps trying.${since}`);
    find("#trouble").hidden = false;
  }

  connection(state) {
    find("#connection").dataset.state = state;
    say(find("#connection .words"), CONNECTION[state]);
  }

  /** Hide the run until the viewer is allowed to see it. */
  close() {
    this.status = null;
    this.connection("closed");
    find("#run").hidden = true;
    find("#trouble").hidden = true;
  }

  /** Announce new rounds to screen readers every 20 s at most; announce the end always. */
  announce(round) {
    const { outcome, rounds } = this.status;
    const now = performance.now();
    const late = now - this.announced.at > 1000 * ANNOUNCE_SECONDS && round > this.announced.round;
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
    say(find("#name"), status.run ?? "Unnamed run");
    say(find("#algorithm"), status.algorithm ?? "");
    say(find("#round"), count(Math.max(status.round, status.completed)));
    say(find("#rounds"), count(status.rounds));
    say(find("#unit"), status.study ? "Models" : "Round");
    say(find("#phase"), status.phase);
    say(find("#pace"), pace(status.seconds_a_round ?? undefined));
    find("#pace-fact").hidden = status.seconds_a_round === null;
    find("#left-fact").hidden = status.seconds_left === null;
    find("#progress").max = Math.max(1, status.rounds);
    find("#progress").value = status.completed;
    find("#outcome").hidden = status.outcome === null;
    say(find("#outcome"), `The run has ended: ${status.outcome}.`);
    find("#secure").hidden = !status.secure;
    this.study.show(status.study);
    this.silos.show(status.silos, (Date.now() - this.lag) / 1000, status.outcome !== null);
    this.tick();
  }

  /** Update the times that pass between two messages. */
  tick() {
    if (!this.status) return;
    this.silos.tick((Date.now() - this.lag) / 1000);
    const passed = (Date.now() - this.receivedAt) / 1000;
    say(find("#left"), `about ${duration(Math.max(0, this.status.seconds_left - passed))}`);
  }

  /** Show the settings. */
  about({ manifest, study, hash }) {
    const simple = Object.entries(manifest ?? study).filter(([, value]) => typeof value !== "object");
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

/** Ask for a token, after none or a wrong one was refused. */
async function askForToken(page, form, wrong) {
  forget();
  page.close();
  const given = await form.open(wrong);
  find("#content").focus();
  return given;
}

/** Return whether viewers need a token; asked first, to send no request that must be refused. */
async function needsToken() {
  try {
    return (await (await ask("v1/health", null)).json()).viewer_token;
  } catch {
    return false; // the feed reports the problem and tries again
  }
}

async function start() {
  const page = new Page();
  const form = new TokenForm(find("#token-form"));
  let feed = null;
  const nudge = () => feed?.nudge();
  find("#trouble button").addEventListener("click", nudge);
  window.addEventListener("online", nudge);
  find("#forget").addEventListener("click", () => {
    forget();
    location.reload();
  });
  let token = stored();
  if (token === null && (await needsToken())) token = await askForToken(page, form, false);
  for (;;) {
    find("#forget").hidden = !token;
    page.connection("connecting");
    feed = new Feed(token, page.listener());
    try {
      await feed.follow();
      return;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      token = await askForToken(page, form, token !== null);
    }
  }
}

start();
