// Numbers and times as people say them, and a short way to make elements.

/** 1,234 or 12.3k: at most five characters. */
export function short(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10 && number % 1 !== 0) return number.toFixed(1);
  if (number < 10000) return Math.round(number).toLocaleString("en-US");
  if (number < 1e6) return (number / 1e3).toFixed(number < 1e5 && number % 1e3 >= 50 ? 1 : 0) + "k";
  return (number / 1e6).toFixed(number < 1e8 && number % 1e6 >= 5e4 ? 1 : 0) + "M";
}

export const whole = number => Math.round(number).toLocaleString("en-US");
export const percent = share => share === null || share === undefined ? "–"
  : share > 0 && share < 0.001 ? "< 0.1 %" : (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; number >= 1024 && unit < units.length - 1; ++unit) number /= 1024;
  return `${number.toFixed(number < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

/** "3 s", "12 min", "4 h 20 min", "3 days" */
export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}

export const clock = unixTime => new Date(1000 * unixTime).toLocaleTimeString("en-GB");

/** Text goes in as text: names of domains and models come from elsewhere. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  made.append(...children);
  return made;
}

export const byId = id => document.getElementById(id);

/** Changes a text only if it is another one: else screen readers would read it out again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
