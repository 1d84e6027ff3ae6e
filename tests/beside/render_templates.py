#!/usr/bin/env python3
"""Renders the conversations with each template, by transformers and by kvhive's renderer, and compares byte for byte.

RECORD=1: writes what transformers gives to tests/serve/rendered.json, which `make test` compares with.
"""
import copy
import json
import os
import pathlib
import subprocess
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
KWARGS = {"date_string": "26 Jul 2024"}


class Kvhive:
    """kvhive's renderer, as kvhive serve talks to it."""

    def __init__(self, template):
        self.process = subprocess.Popen(["/usr/bin/python3", "-I", ROOT / "tools/serve/chat/render_chat.py"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        kind, text = self.ask({"templates": {"default": template}, "tokenizer": SPECIAL_TOKENS})
        assert kind == 0, text

    def ask(self, value):
        payload = json.dumps(value, ensure_ascii=False).encode()
        self.process.stdin.write(len(payload).to_bytes(4, "big") + payload)
        self.process.stdin.flush()
        answer = self.process.stdout.read(int.from_bytes(self.process.stdout.read(4), "big"))
        return answer[0], answer[1:].decode()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def by_transformers(template, conversation):
    """The text; None = the template refuses the conversation."""
    messages = copy.deepcopy(conversation["messages"])
    for message in messages:  # transformers takes arguments as objects, OpenAI's clients send them as text
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    continues = conversation.get("continue_final_message", False)
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages], tools=conversation.get("tools"), chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", not continues), continue_final_message=continues,
            **SPECIAL_TOKENS, **KWARGS, **conversation.get("chat_template_kwargs", {}))
    except Exception as error:  # the template's own words are compared by eye
        print(f"      refused: {error}")
        return None
    return rendered[0]


def main():
    conversations = json.loads((HERE / "conversations.json").read_text())
    recorded, different = [], 0
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text()
        kvhive = Kvhive(template)
        for conversation in conversations:
            expected = by_transformers(template, conversation)
            request = {**conversation, "chat_template_kwargs": {**KWARGS, **conversation.get("chat_template_kwargs", {})}}
            kind, text = kvhive.ask(request)
            same = text == expected if kind == 0 else expected is None
            different += not same
            print(f"{'same ' if same else 'DIFFERENT'} {path.stem}: {conversation['name']}")
            if not same:
                print(f"  transformers: {expected!r}\n  kvhive:       {text!r}")
            recorded.append({"template": path.name, "request": request, "text": expected})
        kvhive.close()
    print(f"{len(recorded) - different} of {len(recorded)} as transformers {transformers.__version__} renders them")
    if os.environ.get("RECORD"):
        (ROOT / "tests/serve/rendered.json").write_text(
            json.dumps({"transformers": transformers.__version__, "special_tokens": SPECIAL_TOKENS, "rendered": recorded},
                       ensure_ascii=False, indent=1) + "\n")
    sys.exit(1 if different else 0)


main()
