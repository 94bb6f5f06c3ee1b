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
from meshd.gateway.json_fields import objects_of
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
        for tool in objects_of(asked.get("tools"))
    ]
    return {**asked, "tools": [{"type": "function", "function": one} for one in functions]}


def responses_as_a_chat(asked: Mapping[str, object]) -> dict[str, object]:
    """A request of the Responses API, as far as it matters here."""
    functions = [
        {name: value for name, value in tool.items() if name != "type"}
        for tool in objects_of(asked.get("tools"))
        if tool.get("type") == "function"
    ]
    reasoning = asked.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    chat = {**asked, "tools": [{"type": "function", "function": one} for one in functions]}
    return chat if effort is None else {**chat, "reasoning_effort": effort}


class CallTemplate:
    """`question` and `answer` in turn, until there is no further question: then `written` is known.

    One question at a time: what calls and their tools take in memory is a peer's choice.
    """

    def __init__(self, asked: Mapping[str, object], calls: Sequence[SentCall], *, after_text: bool) -> None:
        """Of a chat that asked for this. `after_text`: the client has some before the calls."""
        self._asked = {name: asked[name] for name in _TEMPLATE_FIELDS if name in asked}
        self._calls = calls
        self._after_text = after_text
        self._begun: list[BegunArguments] = []
        self._arguments = [[_marked(number) for number, _ in enumerate(calls)]]  # to be shown, in turn
        self._before = ""  # the prompt without the calls
        self._behind: list[str] = []  # of each prompt with them, what follows the text
        self._has_content = False
        self._is_over = False
        self.written: str | None = None  # by the model, up to the last of the arguments that the client has

    def question(self) -> bytes | None:
        """The body for `/apply-template`: a chat before the calls were made, then with them."""
        if self._is_over:
            return None
        # what was said before does not matter for how a call is written
        messages: list[Mapping[str, object]] = [{"role": "user", "content": "-"}]
        if self._before:
            messages += self._made(self._arguments[len(self._behind)])
        return json.dumps({**self._asked, "messages": messages}).encode()

    def answer(self, prompt: str) -> None:
        """Empty where there is none."""
        if prompt and not self._before:
            self._before = prompt
            return
        behind = self._behind_text(prompt)
        if behind is None:
            self._is_over = True
            return
        self._behind.append(behind)
        if len(self._behind) == 1 and (text := _written_as_json(behind, self._calls)) is not None:
            self._write(text)
        elif len(self._behind) == 1:
            self._show_tagged()
        elif len(self._behind) == len(self._arguments):
            self._write(written_tagged(self._behind[1], self._behind[2], self._begun))

    def _show_tagged(self) -> None:
        begun = [begun_arguments(call.text) for call in self._calls]
        self._begun = [one for one in begun if one is not None]
        self._is_over = len(self._begun) < len(begun)
        if not self._is_over:
            self._arguments += tagged_arguments(self._begun)

    def _write(self, text: str | None) -> None:
        self._is_over = True
        # where the client has no text, the whitespace that follows it in the template was not written either
        strips = text is not None and self._has_content and not self._after_text
        self.written = text.lstrip() if text is not None and strips else text

    def _made(self, arguments: Sequence[str]) -> list[Mapping[str, object]]:
        made, answers = [], []
        for call, said in zip(self._calls, arguments, strict=True):
            function = {"name": call.name, "arguments": said}
            made.append({"id": call.id, "type": "function", "function": function})
            answers.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "-"})
        # an answer of each tool behind it: a message that ends with calls would be one to go on with
        return [{"role": "assistant", "content": _CONTENT, "tool_calls": made}, *answers]

    def _behind_text(self, prompt: str) -> str | None:
        """None where that cannot be found."""
        _, found, behind = prompt.rpartition(_CONTENT)
        if found:
            self._has_content = True
            return behind
        # some templates write no text beside calls
        return prompt[len(self._before) :] if self._before and prompt.startswith(self._before) else None


def _marked(number: int) -> str:
    return json.dumps({f"{_ARGUMENTS}-{number}": 0})


def _written_as_json(behind: str, calls: Sequence[SentCall]) -> str | None:
    parts, at = [], 0
    for number, call in enumerate(calls):
        found = re.compile(rf'\{{\s*"{_ARGUMENTS}-{number}"\s*:\s*0\s*\}}').search(behind, at)
        if found is None:  # this template writes arguments otherwise
            return None
        parts += [behind[at : found.start()], call.text]
        at = found.end()
    return "".join(parts)
