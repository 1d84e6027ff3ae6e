#!/usr/bin/env python3
"""vLLM's own beam search beside kvhive's.

SEARCHES=2000 searches over random log-probabilities go through BeamSearchOnlineMixin.beam_search() of the `vllm` package; kvhive's side is the
test BeamSearch.DecidesAsVllmDoes, which reads what this writes. Then vLLM's search asks the engines of a running hive for its log-probabilities,
and its answers must be those of `use_beam_search` over HTTP.

SEED for other ones. RECORD=1 also writes some to tests/serve/vllm_beams.jsonl, for a test that needs no vLLM.
"""
import asyncio
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
VOCABULARY = 40
ENDS = [3, 7]

import numpy  # noqa: E402
from recorded import compare  # noqa: E402
from vllm.sampling_params import BeamSearchParams  # noqa: E402
from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin  # noqa: E402


class Searcher(BeamSearchOnlineMixin):
    """vLLM's search, with log-probabilities of `ask(tokens, count)`: a list of (token, logprob), the likeliest first."""

    def __init__(self, ask, ends):
        self.steps = []
        self.renderer = SimpleNamespace(get_tokenizer=lambda: SimpleNamespace(eos_token_id=ends[0], decode=lambda ids, **_: str(ids)))
        self.engine_client = self
        self.input_processor = SimpleNamespace(resolve_watermarking=lambda params: None, vllm_config=None,
                                               generation_config_fields={"eos_token_id": ends})
        self.ask = ask
        self.batch = None

    async def generate(self, prompt, params, request_id, **_):
        tokens = prompt["prompt_token_ids"]
        batch = request_id.rsplit("-beam-", 1)[0]
        if batch != self.batch:
            self.batch = batch
            self.steps.append([])
        top = self.ask(tokens, params.logprobs)
        self.steps[-1].append({"tokens": list(tokens), "top": top})
        logprobs = {token: SimpleNamespace(logprob=logprob) for token, logprob in top}
        yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason="length", logprobs=[logprobs])])

    def search(self, prompt, **params):
        async def last():
            given = {"type": "token", "prompt_token_ids": prompt}
            return [result async for result in self.beam_search(given, "search", BeamSearchParams(temperature=0, **params))][-1]
        return asyncio.run(last()).outputs


def random_search(rng):
    seed, sharpness = rng.random(), rng.choice([1, 3])

    def ask(tokens, count):
        values = random.Random(f"{seed} {tokens}")
        logits = numpy.array([values.gauss(0, sharpness) for _ in range(VOCABULARY)])
        logprobs = (logits - numpy.log(numpy.exp(logits).sum())).astype(numpy.float32)
        order = sorted(range(VOCABULARY), key=lambda token: -logprobs[token])
        return [(token, float(str(logprobs[token]))) for token in order[:count]]

    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
    rules = {"beam_width": rng.randint(1, 10), "max_tokens": rng.randint(1, 12), "length_penalty": rng.choice([0, 0.5, 1, 1, 1, 2, -1]),
             "ignore_eos": rng.random() < 0.3}
    ends = ENDS[:rng.randint(1, 2)]
    searcher = Searcher(ask, ends)
    best = searcher.search(prompt, **rules)
    steps = [[{"tokens": beam["tokens"][len(prompt):], "top": beam["top"]} for beam in step] for step in searcher.steps]
    return {"width": rules["beam_width"], "max_tokens": rules["max_tokens"], "length_penalty": rules["length_penalty"], "ends": ends,
            "ignore_eos": rules["ignore_eos"], "steps": steps,
            "best": [{"tokens": list(each.token_ids), "logprob": each.cumulative_logprob, "stop_reason": each.stop_reason} for each in best]}


def lines(rng, searches):
    for _ in range(searches):
        yield json.dumps(random_search(rng), separators=(",", ":")) + "\n"


def asked(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"]


def model_that_ends(directory, ends):
    """The demo model's text does not end, so here frequent tokens end it."""
    model = pathlib.Path(directory)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copy(ROOT / "models/demo" / name, model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return model


def beside_a_hive(ends):
    """The number of searches that differ."""
    different = 0
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/kvhived.sock"
        daemon = subprocess.Popen([BIN / "kvhived", "--model", model_that_ends(directory, ends), "--engines", "2", "--kv-cache-memory-bytes", "32M",
                                   "--threads", "1", "--log-level", "error", "--socket", socket])
        service = subprocess.Popen([BIN / "kvhive", "serve", "--socket", socket, "--port", "0", "--wait-for-daemon", "60"],
                                   stdout=subprocess.PIPE, text=True)
        url = service.stdout.readline().split(" on ")[1].strip()
        def ask(tokens, count):
            top = asked(url, {"prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": count, "ignore_eos": True,
                              "return_tokens_as_token_ids": True})[0]["logprobs"]["top_logprobs"][0]
            return [(int(name.removeprefix("token_id:")), logprob) for name, logprob in top.items()]

        for text in ("In the beginning", "And God said", "The waters"):
            for width, ignores in ((1, True), (4, True), (4, False), (10, False)):
                ours = asked(url, {"prompt": text, "max_tokens": 15, "n": width, "use_beam_search": True, "ignore_eos": ignores,
                                   "return_token_ids": True})
                theirs = Searcher(ask, ends).search(ours[0]["prompt_token_ids"], beam_width=width, max_tokens=15, ignore_eos=ignores)
                equal = [(each["token_ids"], each["stop_reason"]) for each in ours] == [(list(each.token_ids), each.stop_reason) for each in theirs]
                different += not equal
                print(f"{'ok    ' if equal else 'FAILED'} '{text}', {width} beams{', through ends' if ignores else ''}")
        for process in (service, daemon):
            process.terminate()
            process.wait()
    return different


def main():
    searches = int(os.environ.get("SEARCHES") or 2000)
    code = compare(lines, searches, "tests/serve/vllm_beams.jsonl", 60, "kvhive_serve_test", "BeamSearch.DecidesAsVllmDoes",
                   "KVHIVE_VLLM_BEAMS")
    print(f"beam search: {searches} searches, {'all as vLLM decides them' if code == 0 else 'NOT as vLLM decides them'}")
    sys.exit(code or beside_a_hive([11, 268]))


main()
