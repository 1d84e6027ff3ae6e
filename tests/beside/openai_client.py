#!/usr/bin/env python3
"""The openai package against kvhive serve, as its users use it. Prints a line for each thing that was tried."""
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ASK = [{"role": "user", "content": "How is the weather?"}]
SAID = "Hello from the hive."
failed = 0


def check(what, fine, seen=""):
    global failed
    failed += not fine
    print(f"{'ok    ' if fine else 'FAILED'} {what}{'' if fine else f': {seen!r}'}", flush=True)


def raised(call):
    try:
        call()
    except openai.OpenAIError as error:
        return error
    return None


class Daemon:
    def __init__(self, directory, model):
        self.socket = f"{directory}/kvhived.sock"
        self.start(model)

    def start(self, model):
        self.process = subprocess.Popen([BIN / "kvhived", "--model", model, "--engines", "2", "--kv-cache-memory-bytes", "32M",
                                         "--threads", "1", "--log-level", "error", "--socket", self.socket])

    def running(self):
        told = subprocess.run([BIN / "kvhive", "pool", "procs", "--socket", self.socket, "--format", "json"],
                              capture_output=True, text=True, check=True).stdout
        return sum(p.get("running", 0) + p.get("waiting", 0) for p in json.loads(told)["processes"])

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Service:
    def __init__(self, socket, *flags):
        self.process = subprocess.Popen([BIN / "kvhive", "serve", "--socket", socket, "--port", "0", "--wait-for-daemon", "60", *flags],
                                        stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split(" on ")[1].strip() + "/v1"

    def client(self, **options):
        return openai.OpenAI(base_url=self.url, api_key=options.pop("api_key", "none"), **options)

    def stop(self):
        self.process.terminate()
        return self.process.wait()


def wait_for(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
    return True


def completions(client, model):
    whole = client.completions.create(model=model, prompt="In the beginning", max_tokens=30, temperature=0)
    check("completions: whole", whole.choices[0].finish_reason == "length" and len(whole.choices[0].text) > 30, whole)
    check("completions: usage", whole.usage.completion_tokens == 30 and whole.usage.prompt_tokens > 0, whole.usage)
    parts = list(client.completions.create(model=model, prompt="In the beginning", max_tokens=30, temperature=0, stream=True,
                                           stream_options={"include_usage": True}))
    check("completions: a stream is the whole", "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text)
    check("completions: usage at the stream's end", parts[-1].usage.completion_tokens == 30, parts[-1])
    again = client.completions.create(model=model, prompt=["In the beginning", "And God said"], n=2, max_tokens=4, echo=True, seed=1)
    check("completions: n, lists, echo", [c.text[:3] for c in again.choices] == ["In ", "In ", "And", "And"], again)
    told = client.completions.create(model=model, prompt="In the beginning", max_tokens=3, logprobs=2, temperature=0)
    check("completions: logprobs", len(told.choices[0].logprobs.tokens) == 3, told)
    # As evaluation harnesses ask how likely a text is: the last token is the answer's.
    scored = client.completions.create(model=model, prompt="In the beginning God created", max_tokens=1, logprobs=1, echo=True, temperature=0)
    scores = scored.choices[0].logprobs
    check("completions: a scored prompt", scores.token_logprobs[0] is None and all(s < 0 for s in scores.token_logprobs[1:])
          and len(scores.tokens) == scored.usage.prompt_tokens + 1 and "".join(scores.tokens[1:]) == scored.choices[0].text, scored)
    text = whole.choices[0].text
    cut = client.completions.create(model=model, prompt="In the beginning", max_tokens=30, temperature=0, stop=[text[20:26]])
    check("completions: stop", cut.choices[0].text == text[:text.find(text[20:26])] and cut.choices[0].finish_reason == "stop", cut)
    client.completions.create(model=model, prompt="And it came to pass " * 20, max_tokens=1)
    hit = client.completions.create(model=model, prompt="And it came to pass " * 20, max_tokens=1)
    check("completions: cached tokens", hit.usage.prompt_tokens_details.cached_tokens > 0, hit.usage)
    named = client.completions.with_raw_response.create(model=model, prompt="a", max_tokens=1, extra_headers={"X-Request-Id": "mine"})
    check("request ids", named.headers["x-request-id"] == "cmpl-mine" and named.parse().id == "cmpl-mine", named.headers)


def chats(client, model):
    whole = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
    check("chat: whole", whole.choices[0].message.content == SAID and whole.choices[0].finish_reason == "stop", whole)
    parts = list(client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}], stream=True))
    check("chat: a stream is the whole", "".join(p.choices[0].delta.content or "" for p in parts) == SAID, parts)
    told = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}], logprobs=True, top_logprobs=2,
                                          max_completion_tokens=2)
    check("chat: logprobs", [len(e.top_logprobs) for e in told.choices[0].logprobs.content] == [2, 2], told)
    called = client.chat.completions.create(model=model, messages=ASK, tools=TOOLS)
    message = called.choices[0].message
    cities = [json.loads(c.function.arguments)["city"] for c in message.tool_calls or []]
    check("chat: tools", called.choices[0].finish_reason == "tool_calls" and cities == ["Paris", "R\u00f4me"], called)
    results = [{"role": "tool", "tool_call_id": c.id, "content": "Rain."} for c in message.tool_calls]
    final = client.chat.completions.create(model=model, messages=[*ASK, message, *results], tools=TOOLS)
    check("chat: results of tools", final.choices[0].message.content == SAID, final)
    with client.chat.completions.stream(model=model, messages=ASK, tools=TOOLS) as stream:
        done = stream.get_final_completion().choices[0]
    check("chat: tools, accumulated from a stream", [json.loads(c.function.arguments)["city"] for c in done.message.tool_calls] == cities, done)


def errors(client, model, daemon):
    error = raised(lambda: client.completions.create(model=model, prompt="a", temperature=-1))
    check("errors: 400 names the field", isinstance(error, openai.BadRequestError) and error.param == "temperature", error)
    error = raised(lambda: client.completions.create(model="other", prompt="a"))
    check("errors: 404", isinstance(error, openai.NotFoundError), error)
    error = raised(lambda: client.chat.completions.create(model=model, messages=[{"role": "villain", "content": "a"}]))
    check("errors: the template's own words", isinstance(error, openai.BadRequestError) and "villains" in str(error), error)
    error = raised(lambda: client.embeddings.create(model=model, input="a"))
    check("errors: embeddings", isinstance(error, openai.APIStatusError) and error.status_code == 501, error)
    keys = pathlib.Path(daemon.socket).parent / "keys"
    keys.write_text("secret\n")
    guarded = Service(daemon.socket, "--api-key-file", str(keys))
    error = raised(lambda: guarded.client(api_key="wrong").models.list())
    check("errors: 401", isinstance(error, openai.AuthenticationError), error)
    check("keys", guarded.client(api_key="secret").models.list().data[0].id == model)
    guarded.stop()


def aborts(client, model, daemon):
    stream = client.completions.create(model=model, prompt="In the beginning", max_tokens=3000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    was = daemon.running()
    stream.close()
    check("abort: leaving a stream ends its request", was == 1 and wait_for(lambda: daemon.running() == 0), was)
    error = raised(lambda: client.with_options(timeout=0.5, max_retries=0).completions.create(
        model=model, prompt="In the beginning", max_tokens=3900, extra_body={"ignore_eos": True}))
    check("abort: a client's own timeout ends it", isinstance(error, openai.APITimeoutError) and wait_for(lambda: daemon.running() == 0), error)


async def parallel(url, model):
    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    answers = await asyncio.gather(*(client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Number {i}"}]) for i in range(200)))
    check("200 chats in parallel", all(a.choices[0].message.content == SAID for a in answers))


def retries(service, model, daemon, directory):
    daemon.stop()
    start = time.monotonic()
    error = raised(lambda: service.client().completions.create(model="speaking", prompt="a", max_tokens=1))
    check("retries: two, then 503", isinstance(error, openai.InternalServerError) and error.status_code == 503, error)
    check("retries: as late as Retry-After says", time.monotonic() - start < 5)
    later = threading.Timer(0.5, daemon.start, [model])
    later.start()
    answer = service.client(max_retries=100).completions.create(model="speaking", prompt="a", max_tokens=1)
    check("retries: until the daemon is back", answer.usage.completion_tokens == 1, answer)


def main():
    with tempfile.TemporaryDirectory() as directory:
        speaking = f"{directory}/speaking"
        subprocess.run(["/usr/bin/python3", ROOT / "tests/serve/speaking_model.py", speaking], check=True)
        demo = Daemon(directory, str(ROOT / "models/demo"))
        service = Service(demo.socket)
        client = service.client()
        model = client.models.list().data[0].id
        completions(client, model)
        aborts(client, model, demo)
        check("a service ends with code 0", service.stop() == 0)
        demo.stop()

        daemon = Daemon(directory, speaking)
        service = Service(daemon.socket)
        client = service.client()
        chats(client, "speaking")
        errors(client, "speaking", daemon)
        asyncio.run(parallel(service.url, "speaking"))
        retries(service, speaking, daemon, directory)
        service.stop()
        daemon.stop()
    print(f"openai {openai.__version__}: {'all as expected' if failed == 0 else f'{failed} not as expected'}")
    sys.exit(1 if failed else 0)


main()
