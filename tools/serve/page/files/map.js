// The pool map: one cell for each block, or for some neighbours of a large pool. Colour says what a
// cell's blocks are; form says the same (full, small, crossed, a letter), for who sees no colours.
import {byId, counted, element, percent, say, whole} from "./words.js";

const kGap = 1.5;
const kEdge = 3;  // around the cells, for the mark
const kFadeMs = 900;
const kMostHeight = 430;
const kExplained = {
  state: "what each block is doing", owner: "which engine holds a block", domain: "whose content it has",
  age: "how soon it is evicted", sharing: "how many engines hold it", tier: "where it is",
};

/** "2*3 2:5,0:3" -> cells, each a list of [category, blocks]. tools/serve/page/README.md has the form. */
function parseCells(text, perCell, blocks) {
  const cells = [];
  for (const word of text.split(" ")) {
    const [what, times] = word.split("*");
    const parts = what.includes(":") ? what.split(",").map(part => part.split(":").map(Number)) : [[Number(what), perCell]];
    for (let i = 0; i < Number(times ?? 1); ++i) cells.push(parts);
  }
  const inLast = blocks - perCell * (cells.length - 1);  // a tier's last cell may have fewer
  if (cells.length && cells.at(-1).length === 1) cells[cells.length - 1] = [[cells.at(-1)[0][0], inLast]];
  return cells;
}

/** Of two categories with as many blocks the later one, as in kvhive pool map. */
const mostOf = cell => cell.reduce((best, part) => part[1] >= best[1] ? part : best, [0, 0])[0];

const legendsOf = hive => hive.map.views.map(view => view.categories.map(category => category.name)).join("|");

/** Idle blocks held by nobody have no owner and no references: words that fit each question. */
const kAnswers = {
  owner: name => name.replace("idle (cached)", "nobody"),
  domain: name => name.replace(/^domain /, ""),
  sharing: name => name.replace("idle (cached)", "none").replace("held by ", ""),
  age: name => name.replace("in use", "not while it is in use").replace(/^idle, evicted /, "").replace(/^tenth (\d)/, "after $1 tenths of the idle blocks"),
};

function formOf(by, category) {
  if (category.is_free) return "ground";
  if (category.name === "retired") return "cross";
  if (category.letter === "-") return "small";
  if (category.letter === "+") return "stripe";
  const forms = {state: {F: "half", H: "full", S: "stripe", I: "small"}, tier: {D: "full", d: "small", U: "stripe", u: "small"},
    age: {"#": "full"}};
  if (forms[by]?.[category.letter]) return forms[by][category.letter];
  return by === "age" ? "level" : "letter";
}

/** Black or white, whichever is read better on the colour. */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map(i => (parseInt(colour.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#10151b" : "#ffffff";
}

class Brush {
  constructor(context) {
    this.context = context;
    const style = getComputedStyle(document.documentElement);
    this.ground = style.getPropertyValue("--cell").trim();
    this.line = style.getPropertyValue("--cell-line").trim();
    this.ink = style.getPropertyValue("--ink").trim();
    this.quiet = Number(style.getPropertyValue("--quiet"));
  }

  box(x, y, width, height, colour) {
    this.context.fillStyle = colour;
    this.context.beginPath();
    this.context.roundRect(x, y, width, height, Math.min(2.5, width / 4, height / 2));
    this.context.fill();
  }

  cell(x, y, side, form, category) {
    const c = this.context;
    if (form === "ground") return this.box(x, y, side, side, this.ground);
    if (form === "small") {
      this.box(x, y, side, side, this.ground);
      const inset = Math.max(1, side * 0.19);
      const alpha = c.globalAlpha;
      c.globalAlpha = alpha * this.quiet;
      this.box(x + inset, y + inset, side - 2 * inset, side - 2 * inset, category.colour);
      c.globalAlpha = alpha;
      return;
    }
    if (form === "level") {
      this.box(x, y, side, side, this.ground);
      const level = side * (0.3 + 0.7 * Number(category.letter) / 9);
      return this.box(x, y + side - level, side, level, category.colour);
    }
    if (form === "half") {
      this.box(x, y, side, side, this.ground);
      c.fillStyle = category.colour;
      c.beginPath();
      c.moveTo(x, y + side);
      c.lineTo(x + side, y + side);
      c.lineTo(x + side, y);
      return c.fill();
    }
    this.box(x, y, side, side, category.colour);
    c.strokeStyle = c.fillStyle = inkOn(category.colour);
    c.lineWidth = Math.max(1.2, side / 9);
    c.beginPath();
    if (form === "stripe" || form === "cross") {
      c.moveTo(x + side * 0.25, y + side * 0.75);
      c.lineTo(x + side * 0.75, y + side * 0.25);
    }
    if (form === "cross") {
      c.moveTo(x + side * 0.25, y + side * 0.25);
      c.lineTo(x + side * 0.75, y + side * 0.75);
    }
    c.stroke();
    if (form === "letter" && side >= 9) {
      const alpha = c.globalAlpha;
      c.globalAlpha = 0.75 * alpha;
      c.font = `500 ${Math.round(side * 0.68)}px system-ui, sans-serif`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText(category.letter, x + side / 2, y + side / 2 + side * 0.05);
      c.globalAlpha = alpha;
    }
  }

  /** Bands as large as the parts, the most common kind at the bottom. */
  mixed(x, y, side, cell, categories) {
    const blocks = cell.reduce((sum, part) => sum + part[1], 0);
    this.box(x, y, side, side, this.ground);
    let bottom = y + side;
    for (const [category, count] of [...cell].filter(part => !categories[part[0]].is_free).sort((a, b) => b[1] - a[1])) {
      const height = side * count / blocks;
      this.context.fillStyle = categories[category].colour;
      this.context.fillRect(x, bottom -= height, side, height);
    }
  }
}

export class PoolMap {
  #hive = null;
  #by = "state";
  #tiers = [];     // {name, first, blocks, cells: {by: [...]}, canvas, columns}
  #place = null;   // {tier, cell}, where the pointer or the keyboard is
  #pointed = false;
  #side = 12;
  #changed = new Map();  // "tier/cell" -> {at, was}: when it changed, and from what, in each view
  #isFading = false;

  constructor(node) {
    this.node = node;
    node.addEventListener("keydown", event => this.#onKey(event));
    node.addEventListener("focus", () => { if (this.#place === null) this.#goTo(0, 0, false); this.#draw(); });
    node.addEventListener("blur", () => this.#draw());
    node.addEventListener("pointermove", event => this.#onPointer(event));
    node.addEventListener("pointerdown", event => this.#onPointer(event));
    node.addEventListener("pointerleave", () => { this.#pointed = false; this.#draw(); });
    new ResizeObserver(() => this.#arrange()).observe(node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.#draw(); this.#showLegend(); });
    byId("map-text").addEventListener("toggle", () => { if (this.#hive) this.#showWords(); });
    byId("views").addEventListener("change", event => {
      this.#by = event.target.value;
      this.#changed.clear();
      this.#draw();
      this.#showWords();
    });
  }

  show(hive) {
    const before = this.#tiers;
    const isOther = this.#hive?.pool.epoch !== hive.pool.epoch || before.length !== hive.map.tiers.length;
    const shown = this.#hive;
    this.#hive = hive;
    if (!isOther && legendsOf(hive) !== legendsOf(shown)) this.#changed.clear();
    const now = performance.now();
    this.#tiers = hive.map.tiers.map((tier, i) => {
      const cells = {};
      for (const view of hive.map.views) cells[view.by] = parseCells(view.cells[i], hive.map.blocks_per_cell, tier.blocks);
      // Numbers of categories mean the same only while the legends are the same.
      if (!isOther && legendsOf(hive) === legendsOf(shown))
        cells.state.forEach((cell, at) => {
          const was = before[i]?.cells.state[at];
          if (was && String(was) !== String(cell)) this.#changed.set(`${i}/${at}`, {at: now, was: before[i].cells});
        });
      return {...tier, cells, canvas: before[i]?.canvas, columns: before[i]?.columns};
    });
    if (isOther) this.#build();
    this.#draw();
    this.#showWords();
  }

  /** \param keep  what was shown before stays, and the banner says how old it is */
  showNothing(why, keep) {
    if (keep) return;
    this.#tiers = [];
    this.node.replaceChildren(element("p", {class: "empty"}, why));
    this.node.setAttribute("aria-label", `Pool map: ${why}`);
  }

  #build() {
    this.#place = null;
    this.#changed.clear();
    const {map} = this.#hive;
    if (!byId("views").querySelector("label"))
      byId("views").append(...map.views.map(view => element("label", {title: kExplained[view.by]},
        element("input", {type: "radio", name: "by", value: view.by, checked: view.by === this.#by}), element("span", {}, view.by))));
    this.node.replaceChildren();
    this.#tiers.forEach((tier, i) => {
      if (this.#tiers.length > 1) this.node.append(element("p", {class: "tier"}, `${tier.name} tier: ${counted(tier.blocks, "block")}`));
      tier.canvas = element("canvas", {"data-tier": i, "aria-hidden": "true"});
      this.node.append(tier.canvas);
    });
    this.#arrange();
  }

  /** As large cells as fit the width, and not more than a screen's height. */
  #arrange() {
    const width = this.node.clientWidth - 4 - 2 * kEdge;
    if (!this.#tiers.length || width <= 0) return;
    const rows = side => this.#tiers.reduce((sum, tier) => sum + Math.ceil(tier.cells.state.length / Math.floor(width / side)), 0);
    let side = 26;
    while (side > 7 && rows(side) * side > kMostHeight) side -= 0.5;
    const columns = Math.floor(width / side);
    this.#side = width / columns;  // to the right edge
    for (const tier of this.#tiers) {
      tier.columns = columns;
      const height = Math.ceil(tier.cells.state.length / columns) * this.#side;
      tier.canvas.width = Math.round((width + 2 * kEdge) * devicePixelRatio);
      tier.canvas.height = Math.round((height + 2 * kEdge) * devicePixelRatio);
      tier.canvas.style.width = `${width + 2 * kEdge}px`;
      tier.canvas.style.height = `${height + 2 * kEdge}px`;
    }
    this.#draw();
  }

  #categories() { return this.#hive.map.views.find(view => view.by === this.#by).categories; }

  #draw() {
    if (!this.#hive || !this.#tiers.length) return;
    this.#tiers.forEach((_, i) => this.#drawTier(i));
    this.#showReadout();
    this.#fade();
  }

  #drawTier(index) {
    const tier = this.#tiers[index];
    const context = tier.canvas.getContext("2d");
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, tier.canvas.width, tier.canvas.height);
    const brush = new Brush(context);
    const categories = this.#categories();
    const forms = categories.map(category => formOf(this.#by, category));
    const side = this.#side - kGap;
    const now = performance.now();
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    tier.cells[this.#by].forEach((cell, at) => {
      const [x, y] = this.#corner(tier, at);
      const paint = parts => {
        if (parts.length === 1) brush.cell(x, y, side, forms[parts[0][0]], categories[parts[0][0]]);
        else brush.mixed(x, y, side, parts, categories);
      };
      const change = this.#changed.get(`${index}/${at}`);
      if (!change || isCalm || now - change.at > kFadeMs) return paint(cell);
      paint(change.was[this.#by][at]);
      context.globalAlpha = (now - change.at) / kFadeMs;
      paint(cell);
      context.globalAlpha = 1;
    });
    if (this.#place?.tier === index && (this.#pointed || document.activeElement === this.node)) this.#mark(brush, tier);
  }

  #mark(brush, tier) {
    const [x, y] = this.#corner(tier, this.#place.cell);
    const side = this.#side - kGap;
    const c = brush.context;
    c.lineWidth = 4.5;
    c.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--panel");
    c.strokeRect(x - 1, y - 1, side + 2, side + 2);
    c.lineWidth = 2.2;
    c.strokeStyle = brush.ink;
    c.strokeRect(x - 1, y - 1, side + 2, side + 2);
  }

  #corner(tier, at) { return [kEdge + at % tier.columns * this.#side, kEdge + Math.floor(at / tier.columns) * this.#side]; }

  /** What has changed goes over slowly from the old to the new: nothing blinks. */
  #fade() {
    const now = performance.now();
    for (const [key, change] of this.#changed) if (now - change.at > kFadeMs) this.#changed.delete(key);
    if (this.#isFading || !this.#changed.size || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.#isFading = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.#isFading = false;
      this.#tiers.forEach((_, i) => this.#drawTier(i));
      this.#fade();
    }), 60);
  }

  #onPointer(event) {
    const index = event.target.dataset?.tier;
    if (index === undefined) return;
    const tier = this.#tiers[index];
    const box = tier.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - kEdge) / this.#side), row = Math.floor((event.clientY - box.top - kEdge) / this.#side);
    const cell = row * tier.columns + column;
    if (row < 0 || column < 0 || column >= tier.columns || cell >= tier.cells.state.length) return;
    this.#pointed = true;
    this.#goTo(Number(index), cell, false);
  }

  #onKey(event) {
    if (!this.#tiers.length) return;
    const {tier, cell} = this.#place ?? {tier: 0, cell: 0};
    const columns = this.#tiers[tier].columns;
    const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -4 * columns, PageDown: 4 * columns}[event.key];
    if (event.key === "Home") this.#goTo(0, 0, true);
    else if (event.key === "End") this.#goTo(this.#tiers.length - 1, this.#tiers.at(-1).cells.state.length - 1, true);
    else if (step !== undefined) this.#goTo(tier, cell + step, true);
    else return;
    event.preventDefault();
  }

  /** Behind a tier's end the next one begins. */
  #goTo(tier, cell, speaks) {
    const size = this.#tiers[tier]?.cells.state.length;
    if (size === undefined) return;
    if (cell >= size && tier + 1 < this.#tiers.length) return this.#goTo(tier + 1, cell % this.#tiers[tier].columns, speaks);
    if (cell < 0 && tier > 0) return this.#goTo(tier - 1, this.#tiers[tier - 1].cells.state.length - 1, speaks);
    this.#place = {tier, cell: Math.max(0, Math.min(size - 1, cell))};
    this.#draw();
    if (speaks) say(byId("spoken"), byId("readout").textContent);
  }

  #parts(by) {
    const cell = this.#tiers[this.#place.tier].cells[by][this.#place.cell];
    const categories = this.#hive.map.views.find(view => view.by === by).categories;
    return [...cell].sort((a, b) => b[1] - a[1]).map(([category, count]) => [categories[category], count]);
  }

  /** "all free", or "5 held by one, 3 shared" */
  #told(by, leaveOut = () => false) {
    const parts = this.#parts(by).filter(([category]) => !leaveOut(category));
    const blocks = this.#parts(by).reduce((sum, part) => sum + part[1], 0);
    const word = kAnswers[by] ?? (name => name);
    return parts.map(([category, count]) => count === blocks ? word(category.name) : `${whole(count)} ${word(category.name)}`).join(", ");
  }

  #showReadout() {
    if (this.#place === null) return;
    const tier = this.#tiers[this.#place.tier];
    const perCell = this.#hive.map.blocks_per_cell;
    const first = tier.first_block + this.#place.cell * perCell;
    const last = Math.min(first + perCell, tier.first_block + tier.blocks) - 1;
    const isFree = category => category.is_free || category.name === "retired";
    const rest = ["owner", "domain", "sharing", "age"].map(by => [by, this.#told(by, isFree)]).filter(([, text]) => text);
    const names = {owner: "Owner", domain: "Domain", sharing: "References", age: "Eviction"};
    const node = byId("readout");
    const parts = [element("b", {}, first === last ? `Block ${whole(first)}` : `Blocks ${whole(first)} to ${whole(last)}`),
      ` (${tier.name} tier): ${this.#told("state")}.`];
    for (const [by, text] of rest) parts.push(` ${names[by]}: ${text}.`);
    const text = parts.map(part => part.textContent ?? part).join("");
    if (node.textContent !== text) node.replaceChildren(...parts);
  }

  #showLegend() {
    if (!this.#hive) return;
    const all = this.#categories().reduce((sum, category) => sum + category.blocks, 0);
    byId("legend").replaceChildren(...this.#categories().map(category => {
      const swatch = element("canvas", {width: 16 * devicePixelRatio, height: 16 * devicePixelRatio, "aria-hidden": "true"});
      swatch.style.width = swatch.style.height = "16px";
      const context = swatch.getContext("2d");
      context.scale(devicePixelRatio, devicePixelRatio);
      const brush = new Brush(context);
      brush.cell(0.5, 0.5, 15, formOf(this.#by, category), category);
      if (category.is_free) {
        context.strokeStyle = brush.line;
        context.strokeRect(1, 1, 14, 14);
      }
      return element("li", {"data-empty": category.blocks === 0}, swatch, category.name,
        element("span", {class: "count"}, category.blocks === 0 ? "0" : `${whole(category.blocks)} (${percent(category.blocks / all)})`));
    }));
  }

  /** The scale, the legend, and all of the map as tables, for who does not see it. */
  #showWords() {
    this.#showLegend();
    const {map} = this.#hive;
    const perCell = map.blocks_per_cell;
    say(byId("map-scale"), `One cell is ${perCell === 1 ? "one block" : counted(perCell, "block")}, in the order of memory; colour says ${kExplained[this.#by]}.${perCell > 1 ? " A cell with several kinds is divided as they are." : ""}`);
    const all = map.tiers.reduce((sum, tier) => sum + tier.blocks, 0);
    const most = this.#categories().filter(category => category.blocks).sort((a, b) => b.blocks - a.blocks).slice(0, 3);
    this.node.setAttribute("aria-label", `Pool map by ${this.#by}, ${counted(all, "block")}: ${most.map(category => `${category.name} ${percent(category.blocks / all)}`).join(", ")}`);
    if (!byId("map-text").open) return;
    byId("map-words").replaceChildren(...map.views.map(view => element("p", {},
      element("b", {}, `By ${view.by}: `),
      view.categories.filter(category => category.blocks).map(category => `${category.name} ${whole(category.blocks)} (${percent(category.blocks / all)})`).join(", ") + ".")));
  }
}
