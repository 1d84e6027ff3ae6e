// The last minutes as lines, drawn as SVG. All charts share one time axis and one mark: pointing at
// a second of one (or moving there with the arrow keys) shows that second in all.
import {clock, element, percent, short} from "./words.js";

const kSeconds = 300;            // as many as the service remembers
const kSpans = [60, 120, 300];  // what the charts show: the least of these that holds all there is
const kSvg = "http://www.w3.org/2000/svg";
const kHeight = 58;
// Columns of a row of /hive/history.json.
const kNumber = 0, kTime = 1, kPrompt = 2, kGenerated = 3, kHits = 4, kFirstToken = 5, kRunning = 6, kWaiting = 7, kUsed = 8, kCached = 9;

const kCharts = [
  {title: "Generated tokens", unit: "/s", first: kGenerated, second: kPrompt, firstName: "generated", secondName: "prompt",
    format: short, least: 10, also: row => `prompt tokens ${short(row[kPrompt])} /s`},
  {title: "Cache hits", unit: "", first: kHits, format: percent, most: 1, also: () => "of new prompts' tokens"},
  {title: "Requests running", unit: "", first: kRunning, second: kWaiting, firstName: "running", secondName: "waiting", format: short, least: 4,
    also: row => `waiting ${short(row[kWaiting])}`},
  {title: "Pool in use", unit: "", first: kUsed, second: kCached, firstName: "in use", secondName: "cached", format: percent, most: 1,
    also: row => `cached ${percent(row[kCached])}`},
  {title: "Time to first token", unit: "ms", first: kFirstToken, format: short, least: 10, also: () => "mean of each second"},
];

function svg(name, attributes) {
  const made = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** 1, 2 or 5 times a power of ten, not below the value. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= value * 0.999);
}

class Chart {
  constructor(about, charts) {
    this.about = about;
    this.value = element("span", {class: "value"});
    this.also = element("span", {class: "also"});
    this.top = element("span");
    this.when = element("span");
    this.svg = svg("svg", {preserveAspectRatio: "none", "aria-hidden": "true"});
    this.marks = element("div", {"aria-hidden": "true"});
    this.node = element("div", {class: "card chart", role: "group", tabindex: 0},
      element("h3", {}, about.title), this.value, this.also, this.svg,
      element("div", {class: "range", "aria-hidden": "true"}, this.when, this.top), this.marks);
    this.svg.addEventListener("pointermove", event => {
      const box = this.svg.getBoundingClientRect();
      charts.pointAt((event.clientX - box.left) / box.width);
    });
    this.svg.addEventListener("pointerleave", () => charts.pointAt(null));
    this.node.addEventListener("blur", () => charts.pointAt(null));
    this.node.addEventListener("keydown", event => charts.onKey(event));
  }

  draw(rows, ends, place) {
    const {first, second, most, least, format} = this.about;
    const end = rows.length - 1;
    this.svg.setAttribute("viewBox", `0 0 ${end} ${kHeight}`);
    const values = rows.flatMap(row => [row?.[first], second && row?.[second]]).filter(value => typeof value === "number");
    const top = most ?? roundUp(Math.max(least, ...values, 0));
    const y = value => kHeight - 1 - (kHeight - 6) * Math.min(1, value / top);
    const parts = [svg("line", {class: "base", x1: 0, x2: end, y1: kHeight - 1, y2: kHeight - 1})];
    if (second) parts.push(...this.lines(rows, second, y, "second"));
    parts.push(...this.lines(rows, first, y, "first"));
    for (const x of ends) parts.push(svg("line", {class: "end", x1: x, x2: x, y1: 0, y2: kHeight}));
    if (place !== null) parts.push(svg("line", {class: "cross", x1: place, x2: place, y1: 0, y2: kHeight}));
    this.svg.replaceChildren(...parts);
    this.marks.replaceChildren(...ends.map(x => this.mark(x / end)));
    this.tell(rows, place, top, format);
  }

  /** Of SVG a mark would be stretched with the lines. */
  mark(share) {
    const mark = element("span", {class: "end-mark"}, "▼");
    mark.style.left = `calc(14px + (100% - 28px) * ${share})`;
    mark.style.top = `${this.svg.getBoundingClientRect().top - this.node.getBoundingClientRect().top - 9}px`;
    return mark;
  }

  tell(rows, place, top, format) {
    const row = rows[place ?? rows.length - 1];
    const value = row?.[this.about.first];
    const known = value ?? (place === null && row?.length > 2 ? this.lastOf(rows) : null);
    this.value.replaceChildren(format(known), element("span", {class: "unit"}, known === null ? "" : this.about.unit));
    this.also.replaceChildren(...(row?.length > 2 ? this.keyed(this.about.also(row)) : ["no data"]));
    this.top.textContent = `top ${format(top)}`;
    this.when.textContent = place !== null && row ? clock(row[kTime]) : `last ${rows.length / 60} min`;
    this.node.setAttribute("aria-label", `${this.about.title}: ${format(known)} ${this.about.unit}; ${row?.length > 2 ? this.about.also(row) : "no data"}. Arrow keys go back in time.`);
  }

  keyed(text) {
    return this.about.second ? [element("span", {class: "key dashed", "aria-hidden": "true"}), text] : [text];
  }

  /** A share of nothing has no value: what was last known stays, for a minute. */
  lastOf(rows) {
    return rows.slice(-60).findLast(row => typeof row?.[this.about.first] === "number")?.[this.about.first] ?? null;
  }

  /** Values that are far apart in time are not joined, but a quiet second breaks no line. */
  lines(rows, column, y, name) {
    const parts = [];
    let points = [];
    const end = () => {
      if (points.length > 1) {
        const path = points.map(([x, value]) => `${x},${y(value).toFixed(1)}`).join(" L");
        if (name === "first")
          parts.push(svg("path", {class: "area", d: `M${points[0][0]},${kHeight - 1} L${path} L${points.at(-1)[0]},${kHeight - 1} Z`}));
        parts.push(svg("path", {class: name, d: `M${path}`}));
      } else if (points.length === 1) {
        const [x, value] = points[0];
        parts.push(svg("path", {class: name, d: `M${x - 0.6},${y(value).toFixed(1)} h1.2`}));
      }
      points = [];
    };
    rows.forEach((row, x) => {
      const value = row?.[column];
      if (typeof value === "number") {
        if (points.length && x - points.at(-1)[0] > 5) end();
        points.push([x, value]);
      } else if (!row || row.length < 3) {
        end();
      }
    });
    end();
    return parts;
  }
}

export class Charts {
  last = 0;  // the number of the latest second that is known
  #rows = [];
  #ends = [];
  #place = null;

  constructor(node) {
    this.charts = kCharts.map(about => new Chart(about, this));
    node.append(...this.charts.map(chart => chart.node));
    this.#draw();
  }

  /** After a gap, and from a service that was started anew, all is asked for again. */
  forget() { this.last = 0; }

  add(history) {
    if (history.last < this.last) return this.forget();
    if (this.last === 0) this.#rows = [];
    this.#rows.push(...history.seconds);
    this.#rows = this.#rows.slice(-kSeconds);
    this.last = history.last;
    this.#ends = history.engine_ends;
    this.#draw();
  }

  /** \param share  of the way from the left; null = nowhere */
  pointAt(share) { this.#moveTo(share === null ? null : share * (this.#span() - 1)); }

  onKey(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30}[event.key];
    if (event.key === "Escape") return this.#moveTo(null);
    if (step === undefined) return;
    event.preventDefault();
    this.#moveTo((this.#place ?? this.#span() - 1) + step);
  }

  #span() { return kSpans.find(span => span >= this.#rows.length); }

  #moveTo(place) {
    this.#place = place === null ? null : Math.max(0, Math.min(this.#span() - 1, Math.round(place)));
    this.#draw();
  }

  #draw() {
    const span = this.#span();
    const rows = [...Array(span - this.#rows.length).fill(null), ...this.#rows];
    const latest = this.#rows.at(-1)?.[kTime] ?? 0;
    const ends = this.#ends.map(end => span - 1 - (latest - end.unix_time)).filter(x => x >= 0);
    for (const chart of this.charts) chart.draw(rows, ends, this.#place);
  }
}
