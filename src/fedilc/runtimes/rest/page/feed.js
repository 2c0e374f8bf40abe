// What the coordinator says: its history once, then its events, for as long as it takes.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15000;
const SILENCE = 45000;
const REFRESH = 10000;

/** The coordinator answered, and the answer was no. */
export class Refused extends Error {
  constructor(status, detail, wait) {
    super(detail);
    this.status = status;
    this.wait = wait;
  }
}

/** A response, or Refused; `token` may be null. */
export async function ask(path, token, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("Retry-After")) || 0;
  const reason = typeof detail === "string" ? detail : `it answers ${response.status}`;
  throw new Refused(response.status, reason, wait);
}

/** Server-sent events as [kind, value]; EventSource itself cannot send a token. */
async function* messages(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (fields.event) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

export class Feed {
  /** `listener` has about(about), history(records), record(record), status(status, lag), lost(reason). */
  constructor(token, listener) {
    this.token = token;
    this.listener = listener;
    this.over = false;
    this.admitted = false;
    this.told = 0;
    this.nudge = () => {};
  }

  /** Follow the run to its end, over every break; throws only where this token, or none, is refused. */
  async follow() {
    this.pause = FIRST_PAUSE;
    while (!this.over) {
      let reason = new Error("the connection ended");
      try {
        await this.listen();
      } catch (error) {
        if (error.status === 401 || (error.status === 429 && !this.token && !this.admitted)) throw error;
        reason = error;
      }
      if (this.over) return;
      this.listener.lost(reason);
      await this.rest(Math.max(1000 * (reason.wait || 0), this.pause * (0.75 + Math.random() / 2)));
      this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
    }
  }

  /** One connection, from the whole history to wherever it breaks. */
  async listen() {
    const control = new AbortController();
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => control.abort(), SILENCE);
    };
    heard();
    const { signal } = control;
    let refresh = 0;
    try {
      const records = await (await ask("v1/history", this.token, signal)).json();
      this.admitted = true;
      this.listener.history(records);
      this.listener.about(await (await ask("v1/manifest", this.token, signal)).json());
      const after = records.length ? records.at(-1).round : 0;
      const response = await ask(`v1/events?after=${after}`, this.token, signal);
      const lag = Date.now() - (Date.parse(response.headers.get("Date")) || Date.now());
      refresh = setInterval(() => this.refresh(signal, lag), REFRESH);
      for await (const [kind, value] of messages(response.body, heard)) this.hear(kind, value, lag);
    } finally {
      clearTimeout(silence);
      clearInterval(refresh);
      control.abort();
    }
  }

  /** Ask who was seen last: that a silo still waits is no event. */
  async refresh(signal, lag) {
    if (Date.now() - this.told < REFRESH) return;
    const asked = ask("v1/status", this.token, signal).then((response) => response.json());
    const status = await asked.catch(() => null); // if it is gone, the events will end as well
    if (status) this.hear("status", status, lag);
  }

  hear(kind, value, lag) {
    if (kind === "record") this.listener.record(value);
    if (kind !== "status") return;
    this.told = Date.now();
    this.pause = FIRST_PAUSE;
    this.over = value.outcome !== null;
    this.listener.status(value, lag);
  }

  /** Wait, or until somebody nudges. */
  rest(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.nudge = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
