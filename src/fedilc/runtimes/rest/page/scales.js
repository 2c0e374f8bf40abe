// Axes: which values get a tick, what a tick says, and where a value lies.

/** A round number a little above `rough`: 1, 2 or 5 times a power of ten. */
function stepAbove(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
}

/** Whole rounds between two, about `wanted` of them. */
export function roundTicks(low, high, wanted) {
  const step = Math.max(1, Math.round(stepAbove((high - low) / wanted)));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/** Round values from below `low` to above `high`, about `wanted` of them. */
export function linearTicks(low, high, wanted) {
  const step = stepAbove((high - low) / wanted);
  const ticks = [];
  for (let i = Math.floor(low / step + 1e-6); ; i += 1) {
    ticks.push(i * step);
    if (i * step >= high - step * 1e-6) return ticks;
  }
}

/** Powers of ten between two positive bounds, with as many numbers between them as are wanted. */
export function logTicks(low, high, wanted) {
  const [first, final] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((final - first) / wanted));
  const choices = [[1, 2, 5], [1, 3], [1]].map((factors) => {
    const ticks = [];
    for (let power = first; power <= final; power += every) {
      ticks.push(...factors.map((factor) => factor * 10 ** power));
    }
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  });
  return choices.find((ticks) => ticks.length <= wanted + 1) ?? choices.at(-1);
}

/** What a tick says, with as many decimals as its neighbours need. */
export function tickText(value, ticks) {
  const step = Math.min(...ticks.slice(1).map((tick, i) => tick - ticks[i]), Math.abs(value) || Infinity);
  const largest = Math.max(...ticks.map(Math.abs));
  if (value !== 0 && (largest < 1e-3 || largest >= 1e6 || step < 1e-4)) {
    return Number(value.toPrecision(4)).toExponential();
  }
  const decimals = Number.isFinite(step) && step > 0 ? Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) : 0;
  return decimals ? value.toFixed(decimals) : value.toLocaleString("en", { maximumFractionDigits: 0 });
}

/** From values to pixels: `low` lies at `from`, `high` at `to`. */
export function scale(low, high, from, to, log = false) {
  const turn = log ? Math.log10 : (value) => value;
  const [a, b] = [turn(low), turn(high)];
  return (value) => from + ((turn(value) - a) / (b - a)) * (to - from);
}

/** The least and the largest value, apart in any case; null where there is none. */
export function bounds(values, log = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (log) {
    const air = low === high ? 2 : (high / low) ** 0.06;
    return [low / air, high * air];
  }
  const air = high - low < 1e-9 * Math.abs(high) || high === low ? Math.abs(high) / 10 || 1 : 0;
  return [low - air, high + air];
}
