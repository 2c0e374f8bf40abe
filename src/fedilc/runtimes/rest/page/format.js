// Format numbers, times and sizes, and make elements.

export const NONE = "–";

/** Format a loss or a penalty: three decimals, or an exponent if three are not enough. */
export function number(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 1 : 3);
}

/** Format a share as a percentage. */
export function percent(value) {
  return Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : NONE;
}

/** Format a whole number with thousands separators. */
export function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en") : NONE;
}

/** Format a size in bytes, in powers of a thousand. */
export function bytes(value) {
  if (!Number.isFinite(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  while (size >= 999.5 && units.length > 1) {
    size /= 1000;
    units.shift();
  }
  return `${units[0] === "B" || size >= 99.95 ? Math.round(size) : size.toFixed(1)} ${units[0]}`;
}

/** Format how long ago something was, from the seconds since. */
export function ago(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return `${days} ${days === 1 ? "day" : "days"} ago`;
}

/** Format a time to wait, roughly. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  if (seconds < 5) return "a few seconds";
  if (seconds < 60) return `${5 * Math.round(seconds / 5)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}

/** Format the time of a round, from milliseconds to minutes. */
export function pace(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

/** Set an element's text, unless it is the same already. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return a new element with a class and a text; the text is never parsed as HTML. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
