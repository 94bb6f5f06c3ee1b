"""How a chat template writes the calls of tools that a client has seen begin. Pure.

A client gets a name and arguments, whatever the model wrote around them. To go on within the arguments,
llama-server needs all of it. So its `/apply-template` is shown a call with arguments that are easy to find,
and what the client has takes their place.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

_CONTENT = "meshd-content"
_ARGUMENTS = "meshd-arguments"


@dataclass(slots=True)
class SentCall:
    """Of a tool, as far as the client has it."""

    id: str = ""
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    @property
    def text(self) -> str:
        """Of the arguments."""
        return self.arguments.getvalue()


# Who answers may be another node that serves several models: each has a template of its own.
_TEMPLATE_FIELDS = ("model", "tools", "chat_template_kwargs", "reasoning_effort", "reasoning_format")


def messages_as_a_chat(asked: Mapping[str, object]) -> dict[str, object]:
    """A request of Anthropic's, as far as it matters here."""
    functions = [
        {
            "name": tool.get("name"),
            "description": tool.get("description", ""),
            "parameters": tool.get("input_schema", {}),
        }
        for tool in _tools(asked)
    ]
    return {**asked, "tools": [{"type": "function", "function": one} for one in functions]}


def responses_as_a_chat(asked: Mapping[str, object]) -> dict[str, object]:
    """A request of the Responses API, as far as it matters here."""
    functions = [
        {name: value for name, value in tool.items() if name != "type"}
        for tool in _tools(asked)
        if tool.get("type") == "function"
    ]
    reasoning = asked.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    chat = {**asked, "tools": [{"type": "function", "function": one} for one in functions]}
    return chat if effort is None else {**chat, "reasoning_effort": effort}


def _tools(asked: Mapping[str, object]) -> list[dict[str, object]]:
    tools = asked.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def template_questions(asked: Mapping[str, object], calls: Sequence[SentCall]) -> tuple[bytes, bytes]:
    """Bodies for `/apply-template`: a chat in which `calls` were made, and the same before they were.

    What was said before does not matter for how a call is written.
    """
    asked = {name: asked[name] for name in _TEMPLATE_FIELDS if name in asked}
    messages = [{"role": "user", "content": "-"}]
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _marked(number)}}
        for number, call in enumerate(calls)
    ]
    # an answer of each tool behind it: a message that ends with calls would be taken for one to go on with
    answers = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "-"} for call in calls]
    begun = {"role": "assistant", "content": _CONTENT, "tool_calls": made}
    shown, plain = ({**asked, "messages": one} for one in ([*messages, begun, *answers], messages))
    return json.dumps(shown).encode(), json.dumps(plain).encode()


def _marked(number: int) -> str:
    return json.dumps({f"{_ARGUMENTS}-{number}": 0})


def written_calls(made: str, before: str, calls: Sequence[SentCall], *, after_text: bool) -> str | None:
    """What the model wrote, up to the last of the arguments that the client has; None: that cannot be seen.

    `made` and `before`: the two prompts of `template_questions`. `after_text`: the client has some, too.
    """
    at = made.rfind(_CONTENT)
    has_content = at >= 0
    if has_content:
        at += len(_CONTENT)
    elif made.startswith(before):  # some templates write no text beside calls
        at = len(before)
    else:
        return None
    parts = []
    for number, call in enumerate(calls):
        found = re.compile(rf'\{{\s*"{_ARGUMENTS}-{number}"\s*:\s*0\s*\}}').search(made, at)
        if found is None:  # this template writes arguments otherwise than in JSON
            return None
        parts += [made[at : found.start()], call.text]
        at = found.end()
    text = "".join(parts)
    return (
        text if after_text or not has_content else text.lstrip()
    )  # what parts the two is no text of its own
