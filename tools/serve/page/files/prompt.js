// A prompt to try: streams one completion of this very service, and says what the cache saved.
import {byId, counted, element} from "./words.js";

const kMaxTokens = 120;

/** The data of each server-sent event, as it comes. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2))
      if (text.startsWith("data: {")) yield JSON.parse(text.slice(6, end));
  }
}

async function ask(model, prompt, key, signal) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch("/v1/completions", {method: "POST", signal, headers, body: JSON.stringify(
    {model, prompt, max_tokens: kMaxTokens, temperature: 0.7, stream: true, stream_options: {include_usage: true}})});
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer.body;
}

function costOf(usage, begun, firstAt) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const seconds = (performance.now() - firstAt) / 1000;
  const speed = usage.completion_tokens > 1 ? `, then ${Math.round((usage.completion_tokens - 1) / Math.max(seconds, 0.001))} tokens/s` : "";
  return `${cached} of ${counted(usage.prompt_tokens, "prompt token")} from the cache; first token after ${Math.round(firstAt - begun)} ms${speed}`;
}

export function setUpPrompt() {
  let stop = null;
  const answer = byId("answer"), cost = byId("prompt-cost");

  async function run() {
    const asked = byId("prompt").value;
    const written = document.createTextNode("");
    answer.hidden = false;
    answer.replaceChildren(element("span", {class: "asked"}, asked), written);
    stop = new AbortController();
    const begun = performance.now();
    let firstAt = null;
    for await (const event of events(await ask(byId("model").value || undefined, asked, byId("key").value, stop.signal))) {
      if (event.error) throw new Error(event.error.message);
      const text = event.choices[0]?.text;
      if (text) firstAt ??= performance.now();
      if (text) written.data += text;
      if (event.usage) cost.textContent = costOf(event.usage, begun, firstAt ?? performance.now());
    }
  }

  byId("prompt-form").addEventListener("submit", async event => {
    event.preventDefault();
    if (stop !== null) return;
    cost.textContent = "";
    byId("prompt-stop").hidden = false;
    try {
      await run();
    } catch (error) {
      if (error.name !== "AbortError") answer.append(element("p", {class: "trouble"}, `Refused: ${error.message}`));
    }
    byId("prompt-stop").hidden = true;
    stop = null;
  });
  byId("prompt-stop").addEventListener("click", () => stop?.abort());
  byId("prompt").addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("prompt-form").requestSubmit();
  });

  /** The choice stays where its model does. */
  function offer(models) {
    const menu = byId("model"), chosen = menu.value;
    byId("model-row").hidden = models.length < 2;
    if (models.join() === [...menu.options].map(option => option.value).join()) return;
    menu.replaceChildren(...models.map(name => element("option", {value: name}, name)));
    if (models.includes(chosen)) menu.value = chosen;
  }

  return {
    know(hive) {
      offer(hive.models);
      byId("key-row").hidden = !hive.wants_api_key;
      byId("prompt-note").textContent = hive.model === "demo"
        ? "The demo model is small and has read one old book: it is there to show the hive, not to be clever." : "";
    },
  };
}
