#!/usr/bin/env python3
"""A chat in the terminal with `kvhive serve`, or with any other service in OpenAI's form. Nothing but Python's own library.

chat.py [URL] [--once TEXT]     URL: http://127.0.0.1:8000 by default; KVHIVE_API_KEY: the key, if it wants one

Ctrl-C stops an answer; at the prompt it ends the chat, as Ctrl-D does.
"""
import contextlib
import http.client
import json
import os
import sys
import urllib.parse

with contextlib.suppress(ImportError):
    import readline  # noqa: F401: input() then has a history and can be edited

MAX_TOKENS = 200


class Refused(Exception):
    """The service is away, or does not take the request; the text says why."""


def connect(url):
    place = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    return kind(place.hostname, place.port), place.path.rstrip("/")


def stream(url, messages):
    """Yields an answer's text as it comes."""
    connection, path = connect(url)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("KVHIVE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps({"messages": messages, "stream": True, "max_tokens": MAX_TOKENS})
    with contextlib.closing(connection):  # a service ends an answer whose client has gone
        try:
            connection.request("POST", path + "/v1/chat/completions", body, headers)
            yield from texts_of(connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{url}: {error}") from error


def texts_of(response):
    if response.status != 200:
        text = response.read().decode(errors="replace")
        try:
            raise Refused(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            raise Refused(f"status {response.status}: {text[:200]}") from None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: "):])
        if "error" in event:
            raise Refused(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


def answer(url, messages):
    """Prints the answer and adds it to the conversation, whole or as far as it came."""
    said = ""
    try:
        for text in stream(url, messages):
            print(text, end="", flush=True)
            said += text
    except KeyboardInterrupt:
        pass
    print()
    messages.append({"role": "assistant", "content": said})


def chat(url):
    messages = []
    while True:
        asked = input("you: ")
        if not asked.strip():
            continue
        messages.append({"role": "user", "content": asked})
        try:
            answer(url, messages)
        except Refused as error:
            messages.pop()  # as if it had not been said
            print(f"refused: {error}")


def main():
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        return print(__doc__.strip())
    once = None
    if "--once" in arguments:
        place = arguments.index("--once")
        once = " ".join(arguments[place + 1:place + 2])
        del arguments[place:place + 2]
    url = arguments[0] if arguments else "http://127.0.0.1:8000"
    try:
        if once is None:
            chat(url)
        else:
            answer(url, [{"role": "user", "content": once}])
    except (EOFError, KeyboardInterrupt):
        print()
    except Refused as error:
        sys.exit(f"chat.py: {error}")


if __name__ == "__main__":
    main()
