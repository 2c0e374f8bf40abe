// The completed rounds: one column per number that is drawn, and the whole last record.

const KEYS = [
  "train_loss",
  "validation_loss",
  "test_loss",
  "validation_accuracy",
  "test_accuracy",
  "penalty",
];

export class History {
  constructor() {
    this.replace([]);
  }

  /** Replace all records. */
  replace(records) {
    this.rounds = [];
    this.columns = Object.fromEntries(KEYS.map((key) => [key, []]));
    this.last = null;
    for (const record of records) this.add(record);
  }

  /** Add a round, unless it is known already. */
  add(record) {
    if (this.rounds.length && record.round <= this.rounds.at(-1)) return;
    this.rounds.push(record.round);
    for (const key of KEYS) this.columns[key].push(record[key] ?? null);
    this.last = record;
  }

  get length() {
    return this.rounds.length;
  }

  /** Return whether any round has this number. */
  has(key) {
    return this.columns[key].some((value) => value !== null);
  }

  /** Return the index of a round, or of the nearest one that is known. */
  place(round) {
    let low = 0;
    let high = this.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rounds[middle] < round) low = middle + 1;
      else high = middle;
    }
    return low > 0 && round - this.rounds[low - 1] < this.rounds[low] - round ? low - 1 : low;
  }

  /** Return the index of the first lowest value; -1 if there is none. */
  lowest(key) {
    const values = this.columns[key];
    let lowest = -1;
    for (let i = 0; i < values.length; i += 1) {
      if (values[i] !== null && (lowest < 0 || values[i] < values[lowest])) lowest = i;
    }
    return lowest;
  }

  /** Return the indices of the rounds that each criterion chooses; -1 if it cannot. */
  chosen() {
    return {
      oracle: this.lowest("test_loss"),
      validation: this.lowest("validation_loss"),
      last: this.length - 1,
    };
  }
}
