"""Writes tools.jsonl: our own conversations, as Jinja 3.1.6 renders them, set up as transformers does.

Usage: python3 make_tools.py TOKENIZER_CONFIG.json QWEN3.5.jinja > tools.jsonl

Of the real templates, whose words are not ours, only the SHA-256 of what they write is kept.
"""
import hashlib
import json
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


env.globals["raise_exception"] = refuse

templates = {
    "functions": env.from_string(open("functions.jinja").read()),
    "Qwen3": env.from_string(json.load(open(sys.argv[1]))["chat_template"]),
    "Qwen3.5": env.from_string(open(sys.argv[2]).read()),
}

weather = {"type": "function", "function": {"name": "weather", "description": "The weather <now> & later in a \"place\", é",
           "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1},
           "at": {"type": "array", "items": {"type": "number"}}}, "required": ["place"]}}}
clock = {"function": {"parameters": {}, "name": "clock"}, "type": "function", "strict": True}


def call(name, arguments, id=None):
    return ({"id": id} if id else {}) | {"type": "function", "function": {"name": name, "arguments": arguments}}


S = lambda c: {"role": "system", "content": c}
U = lambda c, **k: {"role": "user", "content": c, **k}
A = lambda c, **k: {"role": "assistant", "content": c, **k}
T = lambda c, **k: {"role": "tool", "content": c, **k}

conversations = [
    ("a question", [U("Hi")], []),
    ("a system message", [S(" Be brief. "), U("Hi")], []),
    ("white space", [U("  Hi \n\n")], []),
    ("tools", [U("What is the weather?")], [weather, clock]),
    ("tools and a system message", [S("Be brief."), U("What is the weather?")], [weather]),
    ("tools and an empty system message", [S(""), U("x")], [clock]),
    ("an answer", [U("1+1?"), A("2")], []),
    ("earlier reasoning", [U("1+1?"), A("2", reasoning_content="easy\n"), U("2+2?"), A("4", reasoning_content="\neasy, too\n")], []),
    ("reasoning within the answer", [U("1+1?"), A("<think>\neasy\n</think>\n\n2"), U("2+2?"), A("<think>\nhm\n</think>\n\n4")], []),
    ("a call", [U("Weather?"), A("", tool_calls=[call("weather", {"place": "Paris", "days": 2}, "c1")]),
                T("sunny", tool_call_id="c1")], [weather]),
    ("calls with text and reasoning", [U("Weather?"), A("Let me see.", reasoning_content="Two calls.", tool_calls=[
        call("weather", {"place": "São Paulo", "at": [1, 2.5, 1e-7], "deep": {"b": None, "a": [True, {"<": "&"}]}}),
        call("clock", {})]), T("12 °C"), T("{\"time\": \"12:00\"}"), A("12 °C at noon.")], [weather, clock]),
    ("several rounds", [S("s"), U("a"), A("", tool_calls=[call("clock", {})]), T("1"), A("", reasoning_content="again",
        tool_calls=[call("clock", {"zone": "UTC", "big": 123456789012345678901234567890})]), T("2"), A("done"), U("b"),
        A("", tool_calls=[call("clock", {"flag": False, "none": None, "text": "a\nb </parameter> c"})]), T("3")], [clock]),
    ("arguments that are text", [U("x"), A("y", tool_calls=[call("clock", "not json")])], []),
    ("a name", [U("x", name="Ann"), A("y"), U("z")], []),
    ("results of tools only", [U("<tool_response>\nx\n</tool_response>"), A("y")], []),
    ("a late system message", [U("x"), S("y"), U("z")], []),
    ("nobody asks", [S("x"), A("y")], []),
    ("tags that people type", [U("<think>x</think> <tool_call> {{ x }} {% if %}"), A("<tool_response>")], []),
    ("many scripts", [U("你好 שלום 🙂👩‍🚀 e\u0301\u2028"), A("नमस्ते")], []),
]

for name, messages, tools in conversations:
    for generate, thinking in [(True, None), (True, False), (True, True), (False, None)]:
        if not generate and messages[-1]["role"] == "user" and len(messages) == 1:
            continue
        out = {"name": name, "messages": messages, "tools": tools, "generate": generate, "thinking": thinking, "text": {}, "sha256": {}, "fails": {}}
        for key, template in templates.items():
            # Arguments that are text cannot be gone through.
            if key == "Qwen3.5" and name == "arguments that are text":
                continue
            extra = {} if thinking is None else {"enable_thinking": thinking}
            try:
                text = template.render(messages=messages, tools=tools or None, documents=None, add_generation_prompt=generate, **extra)
            except jinja2.exceptions.TemplateError as e:
                out["fails"][key] = str(e)
                continue
            if key == "functions":
                out["text"][key] = text
            else:
                out["sha256"][key] = hashlib.sha256(text.encode()).hexdigest()
        print(json.dumps(out, ensure_ascii=False))
