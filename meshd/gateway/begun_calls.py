"""How a chat template writes the calls of tools that a client has seen begin. Pure.

A client gets a name and arguments, whatever the model wrote around them. To go on within the arguments,
llama-server needs all of it. So its `/apply-template` is shown a call with arguments that are easy to find,
and what the client has takes their place: all of them at once where the template writes them as JSON, else
one by one (tagged_calls.py).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

from meshd.gateway.begun_arguments import BegunArguments, begun_arguments
from meshd.gateway.tagged_calls import tagged_arguments, written_tagged

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


def template_questions(asked: Mapping[str, object], calls: Sequence[SentCall]) -> tuple[bytes, ...]:
    """Bodies for `/apply-template`: a chat before `calls` were made, and several after that.

    What was said before does not matter for how a call is written.
    """
    asked = {name: asked[name] for name in _TEMPLATE_FIELDS if name in asked}
    messages: list[Mapping[str, object]] = [{"role": "user", "content": "-"}]
    chats = [messages, [*messages, *_made(calls, [_marked(number) for number, _ in enumerate(calls)])]]
    if (begun := _begun(calls)) is not None:
        chats += [[*messages, *_made(calls, arguments)] for arguments in tagged_arguments(begun)]
    return tuple(json.dumps({**asked, "messages": one}).encode() for one in chats)


def _made(calls: Sequence[SentCall], arguments: Sequence[str]) -> list[Mapping[str, object]]:
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": said}}
        for call, said in zip(calls, arguments, strict=True)
    ]
    # an answer of each tool behind it: a message that ends with calls would be taken for one to go on with
    answers = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "-"} for call in calls]
    return [{"role": "assistant", "content": _CONTENT, "tool_calls": made}, *answers]


def _begun(calls: Sequence[SentCall]) -> list[BegunArguments] | None:
    begun = [begun_arguments(call.text) for call in calls]
    return None if None in begun else [one for one in begun if one is not None]


def _marked(number: int) -> str:
    return json.dumps({f"{_ARGUMENTS}-{number}": 0})


def written_calls(prompts: Sequence[str], calls: Sequence[SentCall], *, after_text: bool) -> str | None:
    """What the model wrote, up to the last of the arguments that the client has; None: that cannot be seen.

    `prompts`: of `template_questions`. `after_text`: the client has some, too.
    """
    before, *made = prompts
    behind = [_behind_content(one, before) for one in made]
    if not behind or behind[0] is None:
        return None
    text = _written_as_json(behind[0], calls)
    if text is None and len(behind) > 1 and (begun := _begun(calls)) is not None:
        _, shown, longer = behind
        text = None if shown is None or longer is None else written_tagged(shown, longer, begun)
    # what parts text and calls is no text of its own
    return text if text is None or after_text or _CONTENT not in made[0] else text.lstrip()


def _behind_content(made: str, before: str) -> str | None:
    _, found, behind = made.rpartition(_CONTENT)
    if found:
        return behind
    # some templates write no text beside calls
    return made[len(before) :] if made.startswith(before) else None


def _written_as_json(behind: str, calls: Sequence[SentCall]) -> str | None:
    parts, at = [], 0
    for number, call in enumerate(calls):
        found = re.compile(rf'\{{\s*"{_ARGUMENTS}-{number}"\s*:\s*0\s*\}}').search(behind, at)
        if found is None:  # this template writes arguments otherwise
            return None
        parts += [behind[at : found.start()], call.text]
        at = found.end()
    return "".join(parts)
