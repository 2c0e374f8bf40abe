// Follow the coordinator: its history once, then its events; reconnect whenever the connection breaks.

const FIRST_PAUSE = 1000;
const MAX_PAUSE = 15000;
const MAX_SILENCE = 45000;
const REFRESH = 10000;

/** The coordinator refused a request. */
export class Refused extends Error {
  constructor(status, detail, wait) {
    super(detail);
    this.status = status;
    this.wait = wait;
  }
}

/** Return a response, or throw Refused; `token` may be null. */
export async function ask(path, token, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("Retry-After")) || 0;
  const reason = typeof detail === "string" ? detail : `it replies with status ${response.status}`;
  throw new Refused(response.status, reason, wait);
}

/** Yield server-sent events as [kind, value]; EventSource itself cannot send a token. */
async function* messages(body, onData) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onData();
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
    this.statusAt = 0;
    this.nudge = () => {};
  }

  /** Follow the run to its end, over every break; throw only if this token, or none, is refused. */
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
      this.pause = Math.min(MAX_PAUSE, 2 * this.pause);
    }
  }

  /** Use one connection, from the whole history until it breaks. */
  async listen() {
    const control = new AbortController();
    let silence = 0;
    const onData = () => {
      clearTimeout(silence);
      silence = setTimeout(() => control.abort(), MAX_SILENCE);
    };
    onData();
    const { signal } = control;
    let refresh = 0;
    try {
      const records = await this.history(signal, onData);
      this.admitted = true;
      this.listener.history(records);
      this.listener.about(await (await ask("v1/manifest", this.token, signal)).json());
      const after = records.length ? records.at(-1).round : 0;
      const response = await ask(`v1/events?after=${after}`, this.token, signal);
      const lag = Date.now() - (Date.parse(response.headers.get("Date")) || Date.now());
      refresh = setInterval(() => this.refresh(signal, lag), REFRESH);
      for await (const [kind, value] of messages(response.body, onData)) this.receive(kind, value, lag);
    } finally {
      clearTimeout(silence);
      clearInterval(refresh);
      control.abort();
    }
  }

  /** Ask for the whole history, a page at a time. */
  async history(signal, onData) {
    const records = [];
    for (let more = true; more; ) {
      const after = records.length ? records.at(-1).round : 0;
      const response = await ask(`v1/history?after=${after}`, this.token, signal);
      records.push(...(await response.json()));
      more = response.headers.has("Link");
      onData();
    }
    return records;
  }

  /** Ask for the status now and then: that a silo still waits is not an event. */
  async refresh(signal, lag) {
    if (Date.now() - this.statusAt < REFRESH) return;
    const asked = ask("v1/status", this.token, signal).then((response) => response.json());
    const status = await asked.catch(() => null); // if the coordinator is gone, the events end as well
    if (status) this.receive("status", status, lag);
  }

  receive(kind, value, lag) {
    if (kind === "record") this.listener.record(value);
    if (kind !== "status") return;
    this.statusAt = Date.now();
    this.pause = FIRST_PAUSE;
    this.over = value.outcome !== null;
    this.listener.status(value, lag);
  }

  /** Wait for some time, or until `nudge` is called. */
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
