// Engines, what their deaths cost, and domains.
import {byId, clock, counted, duration, element, percent, short, whole} from "./words.js";

const kRecentSeconds = 60;  // so long an engine is marked as new
const now = () => Date.now() / 1000;

function bar(share, label) {
  const fill = element("i");
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return element("div", {class: "bar", role: "img", "aria-label": label}, fill);
}

/** Changes nothing if nothing is new, so that a selection or a focus stays. */
function show(node, children) {
  const next = element("div", {}, ...children);
  if (next.innerHTML !== node.innerHTML) node.replaceChildren(...next.childNodes);
}

function numbers(pairs) {
  return element("dl", {class: "numbers"}, ...pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

const kWords = {serving: "serving", guest: "guest", stopped: "stopped", ended: "dead", down: "dead", unknown: "state not known"};
const kSigns = {serving: "●", guest: "●", stopped: "❚❚", ended: "✕", down: "✕", starting: "◌", unknown: "?"};

function stateOf(engine, last, isOld) {
  if (isOld) return `? was ${kWords[engine.state] ?? engine.state}`;
  const word = kWords[engine.state] ?? engine.state;
  const sign = kSigns[engine.state] ?? "!";
  // The process that came then, not that of another daemon since.
  const isNew = engine.is_well && last?.seconds_until_back != null && now() - last.unix_time < kRecentSeconds
    && Math.abs(engine.started - last.unix_time - last.seconds_until_back) < 5;
  return isNew ? `${sign} back for ${duration(Math.max(0, now() - engine.started))}` : `${sign} ${word}`;
}

function engineCard(engine, hive, ends, isOld) {
  const blocks = hive.pool.tiers.reduce((sum, tier) => sum + tier.blocks, 0);
  const held = engine.held_blocks / blocks;
  const hits = engine.prompt_tokens ? engine.cached_tokens / engine.prompt_tokens : null;
  const last = ends.filter(end => end.engine === engine.engine).at(-1);
  const facts = [];
  if (engine.started && engine.is_well) facts.push(`up ${duration(Math.max(0, now() - engine.started))}`);
  if (engine.restarts !== null) facts.push(engine.restarts === 0 ? "never restarted" : `restarted ${engine.restarts === 1 ? "once" : `${engine.restarts} times`}`);
  if (engine.preemptions) facts.push(counted(engine.preemptions, "preemption"));
  return element("article", {class: "card engine", "data-well": String(engine.is_well && !isOld), "data-engine": engine.engine},
    element("header", {}, element("h3", {}, engine.model ? `Engine ${engine.engine} of ${engine.model}` : `Engine ${engine.engine}`), element("span", {class: "state"}, stateOf(engine, last, isOld))),
    numbers([["running", whole(engine.running)], ["waiting", whole(engine.waiting)],
      ["tokens/s", short(engine.generated_tokens_per_second)], ["cache hits", percent(hits)]]),
    bar(held, `holds ${percent(held)} of the pool`),
    element("p", {class: "soft"}, `holds ${counted(engine.held_blocks, "block")} (${percent(held)}) · ${facts.join(" · ")}`));
}

/** \param isOld  the hive cannot be seen any more: this is how it was */
export function showEngines(hive, ends, isOld) {
  show(byId("engines"), hive.engines.length ? hive.engines.map(engine => engineCard(engine, hive, ends, isOld))
    : [element("p", {class: "soft"}, "No engine has the pool.")]);
}

// Until the keeper has told, what was running is as old as the last reading: up to a second.
function costOf(end) {
  const requests = end.requests ?? end.running + end.waiting;
  const work = requests === 0 ? `It had no request${end.requests === null ? " when it was last seen" : ""}`
    : `It had ${counted(requests, "request")}; another engine of its model goes on with them, or this one when it is back`;
  const back = end.seconds_until_back === null ? "it is not back yet"
    : end.seconds_until_back < 1 ? `it was back within ${Math.ceil(end.seconds_until_back * 1000)} ms`
    : `it was back within ${duration(Math.ceil(end.seconds_until_back))}`;
  return `${work}. What it had published stayed in the pool; ${back}.`;
}

export function showEnds(ends) {
  show(byId("ends"), ends.length === 0 ? [] : [element("h3", {}, "Engines that ended, and what it cost"),
    element("ul", {class: "ends"}, ...ends.slice(-6).reverse().map(end => element("li", {},
      element("span", {}, element("b", {}, `Engine ${end.engine}, ${clock(end.unix_time)}. `), costOf(end)))))]);
}

function limitsOf(domain) {
  const limits = [];
  if (domain.min_blocks) limits.push(`at least ${whole(domain.min_blocks)}`);
  if (domain.max_blocks) limits.push(`at most ${whole(domain.max_blocks)}`);
  return limits.join(", ") || "none";
}

export function showDomains(hive) {
  const device = hive.pool.tiers[0].blocks;
  const rows = hive.domains.map(domain => {
    const share = domain.device_blocks / device;
    return element("tr", {}, element("th", {scope: "row"}, domain.name), element("td", {}, whole(domain.held_blocks)),
      element("td", {}, whole(domain.idle_blocks)),
      element("td", {}, bar(share, `${percent(share)} of the device tier`), percent(share)),
      element("td", {}, limitsOf(domain)), element("td", {}, whole(domain.clients)));
  });
  const body = byId("domains");
  const next = element("tbody", {}, ...(rows.length ? rows : [element("tr", {}, element("td", {colspan: 6}, "No domain has a block or a client yet."))]));
  if (next.innerHTML !== body.innerHTML) body.replaceChildren(...next.childNodes);
}
