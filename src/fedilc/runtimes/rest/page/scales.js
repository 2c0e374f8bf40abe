// Axes: the values of ticks, their labels, and the positions of values.

/** Return the next 1, 2 or 5 times a power of ten above `rough`. */
function stepAbove(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
}

/** Return about `wanted` rounds from `low` to `high`. */
export function roundTicks(low, high, wanted) {
  const step = Math.max(1, Math.round(stepAbove((high - low) / wanted)));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/** Return about `wanted` evenly spaced round numbers that enclose `low` and `high`. */
export function linearTicks(low, high, wanted) {
  const step = stepAbove((high - low) / wanted);
  const ticks = [];
  for (let i = Math.floor(low / step + 1e-6); ; i += 1) {
    ticks.push(i * step);
    if (i * step >= high - step * 1e-6) return ticks;
  }
}

/** Return powers of ten between two positive bounds, with 2 and 5 or 3 between them if there is room. */
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

/** Return the label of a tick, with as many decimals as its neighbours need. */
export function tickText(value, ticks) {
  const step = Math.min(...ticks.slice(1).map((tick, i) => tick - ticks[i]), Math.abs(value) || Infinity);
  const largest = Math.max(...ticks.map(Math.abs));
  if (value !== 0 && (largest < 1e-3 || largest >= 1e6 || step < 1e-4)) {
    return Number(value.toPrecision(4)).toExponential();
  }
  const decimals = Number.isFinite(step) && step > 0 ? Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) : 0;
  return decimals ? value.toFixed(decimals) : value.toLocaleString("en", { maximumFractionDigits: 0 });
}

/** Return a function from values to pixels: `low` is at `from`, `high` at `to`. */
export function scale(low, high, from, to, log = false) {
  const transform = log ? Math.log10 : (value) => value;
  const [a, b] = [transform(low), transform(high)];
  return (value) => from + ((transform(value) - a) / (b - a)) * (to - from);
}

/** Return the smallest and the largest value, never equal; null if there is none. */
export function bounds(values, log = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (log) {
    const margin = low === high ? 2 : (high / low) ** 0.06;
    return [low / margin, high * margin];
  }
  const margin = high - low < 1e-9 * Math.abs(high) || high === low ? Math.abs(high) / 10 || 1 : 0;
  return [low - margin, high + margin];
}
