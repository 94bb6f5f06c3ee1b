"""Decide what a scripted assistant answers to a program's request. Pure.

The script has three steps with calls: a shell command, two calls at once, a write; then a final text. The
step is counted from the request's history, so the server needs no state.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.recorded.answers import Answer, Call, Json

STEPS = 3
_SHELL = re.compile(
    r"^(bash|shell|shell_command|exec_command|run_shell_command|execute_command|run_commands?|run)$", re.I
)
_READ = re.compile(r"^(read|read_file|read_files|readfile|view)$", re.I)
_WRITE = re.compile(r"^(write|write_file|write_to_file|save)$", re.I)
_EDIT = re.compile(r"^(edit|edit_file|apply_patch|editor)$", re.I)
_PATCH = "*** Begin Patch\n*** Add File: made.txt\n+hello\n*** End Patch\n"


@dataclass(frozen=True)
class Tool:
    """A tool that a request offers. `namespace` is that of the Responses API, mostly empty."""

    name: str
    schema: Json
    custom: bool = False
    namespace: str = ""


def offered(body: Json) -> list[Tool]:
    """Return the tools of a request in any of the three forms that its client itself runs."""
    found = []
    for tool in body.get("tools") or []:
        if "function" in tool:
            found.append(Tool(tool["function"]["name"], tool["function"].get("parameters") or {}))
        elif tool.get("type") == "namespace":
            found += [
                Tool(inner["name"], inner.get("parameters") or {}, inner["type"] == "custom", tool["name"])
                for inner in tool["tools"]
            ]
        elif tool.get("type") == "custom" and "input_schema" not in tool:
            found.append(Tool(tool["name"], {}, custom=True))
        elif "name" in tool:
            found.append(Tool(tool["name"], tool.get("parameters") or tool.get("input_schema") or {}))
    return found


def step_of(body: Json) -> int:
    """Return how many answers with calls the request's history has."""
    if "messages" in body:
        return sum(bool(_calls(message)) for message in body["messages"] if message["role"] == "assistant")
    steps, inside = 0, False
    for item in body["input"] if isinstance(body.get("input"), list) else []:
        kind = item.get("type", "message")
        steps += kind.endswith("_call") and not inside
        inside = kind.endswith("_call") or (inside and kind == "reasoning")
    return steps


def _calls(message: Json) -> list[Any]:
    """Return the calls of an assistant's message in chat's or Anthropic's form."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [*(message.get("tool_calls") or []), *(b for b in blocks if b.get("type") == "tool_use")]


def answer_to(body: Json, *, step: int, folder: str) -> Answer:
    """Return the answer of this step to a request. `folder` is where the program works."""
    tools = offered(body)
    model = str(body.get("model", ""))
    if not tools:
        return Answer(step, model, "A short answer.")
    if step >= STEPS:
        return Answer(step, model, "All done: the file is there.")
    shell = _pick(tools, _SHELL)
    if step == 0:
        return Answer(step, model, "I look at the files.", (call(shell, folder),), "I should look first.")
    if step == 1:
        return Answer(step, model, "", (call(_pick(tools, _READ, _SHELL), folder), call(shell, folder)))
    return Answer(step, model, "Now I write.", (call(_pick(tools, _WRITE, _EDIT, _SHELL), folder),))


def _pick(tools: list[Tool], *wanted: re.Pattern[str]) -> Tool:
    for pattern in wanted:
        for tool in tools:
            if pattern.search(tool.name):
                return tool
    return tools[0]


def call(tool: Tool, folder: str) -> Call:
    """Return a call whose arguments fit the tool's schema."""
    if tool.custom:
        return Call(tool.name, _PATCH, custom=True)
    file = f"{folder}/{'made.txt' if _WRITE.search(tool.name) else 'notes.txt'}"
    return Call(tool.name, json.dumps(_Filler(file, folder).fill(tool.schema, "")))


@dataclass(frozen=True)
class _Filler:
    """Fills schemas by the names of their properties."""

    file: str
    folder: str

    def fill(self, schema: Json, name: str) -> object:
        for union in ("anyOf", "oneOf", "allOf"):
            if schema.get(union):
                return self.fill(schema[union][0], name)
        if schema.get("enum"):
            return schema["enum"][0]
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next(one for one in kind if one != "null")
        if kind == "object":
            fields = schema.get("properties", {})
            needed = {*schema.get("required", []), *({"cmd", "command", "commands"} & fields.keys())}
            return {field: self.fill(fields[field], field) for field in fields if field in needed}
        if kind == "array":
            return [self.fill(schema.get("items", {}), name)]
        if kind in ("integer", "number"):
            return schema.get("minimum", 1)
        return False if kind == "boolean" else self._text(name.lower())

    def _text(self, name: str) -> str:
        texts = {
            r"cmd|command|script": "ls",
            r"old": "one",
            r"new": "uno",
            r"path|file|uri": self.file,
            r"dir|cwd": self.folder,
            r"content|text|body": "hello\n",
            r"patch|input|diff": _PATCH,
        }
        return next((text for pattern, text in texts.items() if re.search(pattern, name)), "list files")
