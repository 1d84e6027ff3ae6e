"""Renders chat templates for kvhive serve, as transformers' apply_chat_template does.

A child process of kvhive serve: a template comes with a model, and is not trusted. It reads its model's template, and then
requests, from descriptor 0, and writes texts to descriptor 1. Each is a frame: its length in four bytes, high byte first, and
so many bytes. An answer begins with a byte: 0 = a text follows, 1 = the name of a field, a line's end, and what is wrong with it. A template that computes for too long ends
the process.
"""
import datetime
import json
import os
import resource
import signal
import sys

import jinja2
import jinja2.debug  # nothing can be imported later
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
import seccomp

MEMORY_BYTES = 512 << 20
SECONDS = 5  # of a processor, for one text
MOST_TEXT_BYTES = 64 << 20
# What Python calls to compute, to read and write open files, and to end.
SYSTEM_CALLS = ("read", "write", "readv", "writev", "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "futex", "setitimer",
                "clock_gettime", "gettimeofday", "getrandom", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "exit", "exit_group")
# Templates that have Python load what it loads when it is first needed.
WARM_UP = ("{{ strftime_now('%d %b %Y %H:%M:%S %Z %x %X %c') }}{% macro f(x) %}{{ x | tojson(indent=2) | trim }}{% endmacro %}"
           "{% set ns = namespace(a=0) %}{% for m in messages | reverse if m.content is string %}{% set ns.a = ns.a + 1 %}"
           "{{ f(m) ~ loop.index0 ~ '\\n\\u00e9' }}{% break %}{% endfor %}{% generation %}{{ {'b': 1} | dictsort }}{% endgeneration %}",
           "{{ raise_exception('') }}", "{{ messages[0].content.nothing.more }}", "{% if %}", "{{ ().__class__ }}")


class Wrong(Exception):
    """The request cannot be rendered: the field, its value or place in it, and what to send instead."""

    def __init__(self, text, field="messages"):
        super().__init__(text)
        self.field = field


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training. Here it only prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


def is_content(expression, names):
    """Whether an expression of a template is a message's content, or a variable that was set to it."""
    while isinstance(expression, nodes.Filter):
        expression = expression.node
    if isinstance(expression, nodes.Name):
        return expression.name in names
    if isinstance(expression, nodes.Getattr):
        return expression.attr == "content"
    return (isinstance(expression, nodes.Getitem) and isinstance(expression.arg, nodes.Const) and
            expression.arg.value == "content")


def wants_parts(tree):
    """Whether a template goes through the parts of a content, or takes it as one text (as vLLM finds out)."""
    names = {assignment.target.name for assignment in tree.find_all(nodes.Assign)
             if isinstance(assignment.target, nodes.Name) and is_content(assignment.node, ())}
    return any(is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


class Template:
    def __init__(self, env, source):
        self.wants_parts = wants_parts(env.parse(source))
        self.compiled = env.from_string(source)


def shown(value):
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "too long a value"


def texts_of(content, where):
    """The texts of a message's content, which is a text or a list of parts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Wrong(f"{where} is {shown(content)}; use a text, or a list of parts")
    texts = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text", "refusal", "thinking"):
            text = part.get("text", part.get(part["type"]))
            if not isinstance(text, str):
                raise Wrong(f"{where}[{number}] has no text; give it one")
            texts.append(text)
        else:
            kind = part.get("type") if isinstance(part, dict) else part
            raise Wrong(f"{where}[{number}] is of type {kind!r}; this model takes text only")
    return texts


def tool_calls_of(calls, where):
    """Templates want arguments as an object; clients send back the text that they were given."""
    if not isinstance(calls, list):
        raise Wrong(f"{where} is {shown(calls)}; use a list of calls")
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Wrong(f"{where}[{number}] has no function with a name; give {{\"function\": {{\"name\": ...}}}}")
        arguments = function.get("arguments")
        if not arguments:
            function["arguments"] = {}
        elif isinstance(arguments, str):
            try:
                function["arguments"] = json.loads(arguments)
            except ValueError:
                raise Wrong(f"{where}[{number}].function.arguments is {shown(arguments)}; use a JSON object, or its text") from None
    return calls


def message_of(message, number, parts_wanted):
    where = f"messages[{number}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Wrong(f"{where} has no role; give it one, as \"user\"")
    texts = texts_of(message.get("content"), f"{where}.content")
    given = {"role": message["role"],
             "content": [{"type": "text", "text": text} for text in texts] if parts_wanted else "\n".join(texts)}
    if message["role"] == "assistant":
        if message.get("tool_calls"):
            given["tool_calls"] = tool_calls_of(message["tool_calls"], f"{where}.tool_calls")
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if isinstance(reasoning, str):
            given["reasoning"] = given["reasoning_content"] = reasoning
    if message["role"] == "tool" and "tool_call_id" in message:
        given["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        given["name"] = message["name"]
    return given


def up_to_last_message(text, message):
    """Cuts off what the template puts behind the last message, for the model to continue it."""
    content = message["content"]
    last = content if isinstance(content, str) else content[-1]["text"] if content else ""
    start = text.rfind(last.strip())
    if start < 0:
        raise Wrong("continue_final_message: the template changes the last message, so it cannot be continued; leave it out", "continue_final_message")
    whole = last.lstrip()
    return text[:start + len(whole)] if text[start:start + len(whole)] == whole else text[:start + len(last.strip())]


def flag(request, name, otherwise):
    value = request.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, bool):
        raise Wrong(f"{name} is {shown(value)}; use true or false", name)
    return value


class Renderer:
    def __init__(self, templates, special_tokens):
        env = environment()
        self.templates = {name: Template(env, source) for name, source in templates.items()}
        self.special_tokens = special_tokens

    def render(self, request):
        tools = request.get("tools") or None
        use = "tool_use" if tools and "tool_use" in self.templates else "default"
        template = self.templates[use]
        messages = [message_of(m, i, template.wants_parts) for i, m in enumerate(request["messages"])]
        continues = flag(request, "continue_final_message", False)
        prompts = flag(request, "add_generation_prompt", not continues)
        if continues and prompts:
            raise Wrong("continue_final_message and add_generation_prompt are both true; set one of them to false", "continue_final_message")
        further = request.get("chat_template_kwargs") or {}
        if not isinstance(further, dict):
            raise Wrong(f"chat_template_kwargs is {shown(further)}; use an object", "chat_template_kwargs")
        if request.get("reasoning_effort") is not None:
            further = {"reasoning_effort": request["reasoning_effort"], **further}
        names = {**self.special_tokens, **further, "messages": messages, "tools": tools,
                 "documents": request.get("documents"), "add_generation_prompt": prompts}
        text = template.compiled.render(names)
        return up_to_last_message(text, messages[-1]) if continues else text


def special_tokens_of(config):
    """By name: "bos_token" and so on, each a text or an object with one."""
    tokens = {}
    for name, token in config.items():
        if isinstance(token, dict):
            token = token.get("content")
        if name.endswith("_token") and isinstance(token, str):
            tokens[name] = token
    return tokens


def confine():
    """From here on this process can compute, and nothing else. What Python loads when it is first needed is loaded before."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    json.loads(json.dumps({"e\u00e9": [1.5, None]}))
    for source in WARM_UP:
        try:
            environment().from_string(source).render(messages=[{"content": "e\u00e9"}])
        except jinja2.exceptions.TemplateError:
            pass
    allowed = seccomp.SyscallFilter(defaction=seccomp.ERRNO(1))
    for call in SYSTEM_CALLS:
        allowed.add_rule(seccomp.ALLOW, call)
    allowed.load()


def read_frame():
    def exactly(count):
        parts = []
        while count > 0:
            try:
                part = os.read(0, min(count, 1 << 20))
            except ConnectionError:
                raise SystemExit(0) from None
            if not part:
                raise SystemExit(0)  # kvhive serve has ended
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    return exactly(int.from_bytes(exactly(4), "big"))


def write_frame(kind, text):
    payload = bytes([kind]) + text.encode("utf-8", "replace")
    rest = memoryview(len(payload).to_bytes(4, "big") + payload)
    while rest:
        try:
            rest = rest[os.write(1, rest):]
        except ConnectionError:  # kvhive serve has ended, or wants this answer no more: nobody is left to be told
            raise SystemExit(0) from None


def answer(renderer, frame):
    try:
        text = renderer.render(json.loads(frame))
        if len(text) > MOST_TEXT_BYTES:
            raise Wrong(f"messages: rendered they have {len(text)} characters, more than {MOST_TEXT_BYTES}; shorten them")
        return 0, text
    except Wrong as error:
        return 1, f"{error.field}\n{error}"
    except MemoryError:
        return 1, f"messages\nmessages: rendering them needs more than {MEMORY_BYTES >> 20} MiB; shorten them"
    except jinja2.exceptions.TemplateError as error:
        return 1, f"messages\nmessages: the model's chat template refuses them: {error.message or type(error).__name__}"
    except RecursionError:
        return 1, "messages\nmessages: they are nested too deeply; use fewer levels"
    except Exception as error:  # a template's own mistake shows as any
        return 1, f"messages\nmessages: the model's chat template fails: {type(error).__name__}: {error}; the operator may give another"


def main():
    config = json.loads(read_frame())
    confine()
    try:
        renderer = Renderer(config["templates"], special_tokens_of(config["tokenizer"]))
    except jinja2.exceptions.TemplateError as error:
        write_frame(1, f"line {getattr(error, 'lineno', '?')}: {error.message}")
        raise SystemExit(0)
    write_frame(0, "")
    while True:
        frame = read_frame()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends this process
        kind, text = answer(renderer, frame)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(kind, text)


if __name__ == "__main__":
    main()
