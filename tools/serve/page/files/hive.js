// Asks the service once a second and gives what it says to the parts of the page.
import {bytes, byId, counted, duration, say} from "./words.js";
import {Charts} from "./charts.js";
import {PoolMap} from "./map.js";
import {showDomains, showEnds, showEngines} from "./tables.js";
import {setUpPrompt} from "./prompt.js";

const kPeriodMs = 1000;
const kPatienceMs = 5000;  // for an answer
const kLateMs = 3000;      // then the page says how old its data is

const charts = new Charts(byId("charts"));
const map = new PoolMap(byId("map"));
const prompt = setUpPrompt();
let shown = null;     // the last answer with a pool in it
let shownAt = null;   // when it came
let trouble = null;   // {title, text}, while something is away
let silentTurns = 0;

async function ask(path) {
  const answer = await fetch(path, {cache: "no-cache", signal: AbortSignal.timeout(kPatienceMs)});
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function troubleOf(hive) {
  if (hive.sight === "no_daemon")
    return {title: "The daemon is away.", text: `Nothing is served until it is back; this page waits for it. (${hive.trouble || "none has answered yet"})`};
  if (hive.sight === "refused")
    return {title: "This service may not read the pool.",
      text: `Requests are served, but only the daemon's own user and root may look into its memory. Run kvhive serve as that user to see the hive here. (${hive.trouble})`};
  silentTurns = hive.keeper === "answering" ? 0 : silentTurns + 1;
  if (silentTurns > 1)
    return {title: "The daemon does not answer.",
      text: `It is stopped or overloaded. Engines and blocks are read directly and are current; names, restarts and clients are as it last told them${hive.keeper_silent_seconds ? `, ${duration(hive.keeper_silent_seconds)} ago` : ""}.`};
  return null;
}

function showSubtitle(hive) {
  const device = hive.pool.tiers[0];
  say(byId("subtitle"), `${[...new Set(hive.engines.map(engine => engine.model ?? hive.model))].join(", ") || hive.model} · ${counted(hive.engines.length, "engine")} · ${counted(device.blocks, "block")} of ${hive.pool.tokens_per_block} tokens, ${bytes(device.blocks * hive.pool.block_bytes)}`);
  say(byId("version"), `kvhive ${hive.version}.`);
}

function showAge() {
  const state = shownAt === null ? "waiting" : performance.now() - shownAt < kLateMs && !trouble?.isOld ? "live" : "late";
  byId("live").dataset.state = state;
  say(byId("live-text"), state === "live" ? "live" : state === "waiting" ? "waiting for data"
    : `data ${duration((performance.now() - shownAt) / 1000)} old`);
}

function showTrouble() {
  byId("banner").hidden = trouble === null;
  const isOld = trouble?.isOld === true && shown !== null;
  if (isOld && !document.body.classList.contains("old")) showEngines(shown, [], true);
  document.body.classList.toggle("old", isOld);
  if (trouble === null) return;
  const age = trouble.isOld && shownAt !== null ? ` What stands below is ${duration((performance.now() - shownAt) / 1000)} old.` : "";
  say(byId("banner-title"), trouble.title);
  // The age changes each second, and an alert is read out each time it changes: so only now and then.
  const text = trouble.text + age;
  const node = byId("banner-text");
  if (!node.dataset.said || node.dataset.said !== trouble.text || performance.now() - Number(node.dataset.at) > 10000) {
    node.dataset.said = trouble.text;
    node.dataset.at = performance.now();
    say(node, text);
  }
}

function showHive(hive, history) {
  prompt.know(hive);
  trouble = troubleOf(hive);
  if (hive.sight !== "reading") {
    trouble.isOld = true;
    map.showNothing(hive.sight === "refused" ? "The pool cannot be read from here." : "There is no pool: the daemon is away.", shown !== null);
    return;
  }
  shown = hive;
  shownAt = performance.now();
  document.body.classList.remove("empty");
  document.title = `kvhive: ${hive.models.join(", ")}`;
  showSubtitle(hive);
  map.show(hive);
  showEngines(hive, history.engine_ends, false);
  showEnds(history.engine_ends);
  showDomains(hive);
}

async function turn() {
  try {
    const [hive, history] = await Promise.all([ask("/hive.json"), ask(`/hive/history.json?after=${charts.last}`)]);
    charts.add(history);
    showHive(hive, history);
  } catch {
    trouble = {title: "The service does not answer.", text: "kvhive serve has ended, or cannot be reached. This page tries again each second.", isOld: true};
    charts.forget();
  }
  showTrouble();
  showAge();
  document.body.dataset.turns = Number(document.body.dataset.turns ?? 0) + 1;
}

// Nobody sees a hidden page: it asks again when it is shown.
async function run() {
  for (;;) {
    const begun = performance.now();
    if (!document.hidden) await turn();
    else await new Promise(done => document.addEventListener("visibilitychange", done, {once: true}));
    if (!document.hidden) await new Promise(done => setTimeout(done, Math.max(100, kPeriodMs - (performance.now() - begun))));
  }
}
run();
