"""How a request is put so that llama-server goes on behind the text that a client has. Pure.

The prompt becomes the prompt with that text behind it: as tokens where the answer told them, else as text; of
a chat it is the beginning of the assistant's message. Fewer tokens remain to be generated, and the numbers at
the end count all of them.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO
from typing import TypeGuard

_MOST_KEPT = 4 << 20  # letters and tokens of an answer: 131,072 tokens have about half a million letters
_NUMBERS = 1 << 31  # of tokens, and tokens themselves: those of llama-server have 32 bits


class Dialect(StrEnum):
    """Of requests and events that can be continued."""

    NATIVE = "native"
    COMPLETION = "completion"
    CHAT = "chat"
    ANTHROPIC = "anthropic"


DIALECTS: Mapping[str, Dialect] = {
    "/completion": Dialect.NATIVE,
    "/completions": Dialect.NATIVE,
    "/v1/completions": Dialect.COMPLETION,
    "/chat/completions": Dialect.CHAT,
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/messages": Dialect.ANTHROPIC,
}
# What they ask for depends on more than the text so far.
_STATE = ("grammar", "json_schema", "response_format", "echo", "suffix", "thinking")
_SEVERAL = ("n", "n_cmpl", "best_of")
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")


@dataclass(slots=True)
class SentText:
    """What a client has been sent. `is_text` False: more than text, of more than one answer, or too much."""

    dialect: Dialect
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    count: int = 0  # of tokens, or of pieces where it is not told
    is_text: bool = True
    is_over: bool = False
    echo: str = ""  # of the text that was asked to be continued: some dialects begin with it once more
    echoed: int = 0  # so many letters of it have come
    # not lists: of short pieces those would hold many times their letters
    _said: StringIO = field(default_factory=StringIO)
    _thought: StringIO = field(default_factory=StringIO)
    _kept: int = 0

    @property
    def text(self) -> str:
        return self._said.getvalue()

    @property
    def reasoning(self) -> str:
        return self._thought.getvalue()

    def see(self, event: Mapping[str, object]) -> None:
        """One event, by its JSON."""
        if not self.is_text:
            return
        match self.dialect:
            case Dialect.NATIVE:
                self._native(event)
            case Dialect.ANTHROPIC:
                self._anthropic(event)
            case _:
                self._choices(event)
        if self._kept > _MOST_KEPT:
            self.is_text = False
        if not self.is_text:
            self._said, self._thought, self.tokens = StringIO(), StringIO(), array("i")

    def goes_on(self) -> None:
        """The rest of what it is now will be asked for."""
        self.echo, self.echoed = self.text, 0

    def _add(self, said: str, thought: str = "") -> bool:
        """Whether there is any."""
        self._kept += self._said.write(said) + self._thought.write(thought)
        return bool(said or thought)

    def _native(self, event: Mapping[str, object]) -> None:
        self.is_over |= event.get("stop") is True
        self.is_text &= event.get("index", 0) == 0
        tokens, count = event.get("tokens"), event.get("tokens_predicted")
        if isinstance(tokens, list):
            self.tokens.extend(one for one in tokens if _is_number(one))
            self._kept += len(tokens)
        if _is_number(count):
            self.count = count
        self._add(_text(event, "content"))

    def _choices(self, event: Mapping[str, object]) -> None:
        for choice in _objects(event.get("choices")):
            self.is_text &= choice.get("index", 0) == 0
            self.is_over |= choice.get("finish_reason") is not None
            delta = choice.get("delta")
            of = delta if isinstance(delta, dict) else choice
            self.is_text &= "tool_calls" not in of
            said = _text(of, "content") + _text(of, "text")
            self.count += self._add(said, _text(of, "reasoning_content"))

    def _anthropic(self, event: Mapping[str, object]) -> None:
        kind, block, delta = event.get("type"), event.get("content_block"), event.get("delta")
        if kind == "content_block_start":
            self.is_text &= isinstance(block, dict) and block.get("type") == "text" and not event.get("index")
        elif kind == "content_block_delta" and isinstance(delta, dict):
            self.count += self._add(_text(delta, "text"))
        self.is_over |= kind in ("content_block_stop", "message_delta", "message_stop")


def continued(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    """The request for the rest; None where it cannot be put so."""
    if not sent.is_text or sent.is_over or not (sent.text or sent.reasoning):
        return None
    if any(asked.get(name) for name in _STATE) or any(
        asked.get(name, 1) not in (1, None) for name in _SEVERAL
    ):
        return None
    if asked.get("tool_choice") not in (None, "auto", "none"):
        return None
    request = _with_text(asked, sent)
    return None if request is None else _shortened(request, sent.count)


def is_sampled(asked: Mapping[str, object]) -> bool:
    """Whether the seed decides."""
    return asked.get("temperature") != 0


def _with_text(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    request = dict(asked)
    if sent.dialect in (Dialect.NATIVE, Dialect.COMPLETION):
        prompt = asked.get("prompt")
        parts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(parts, list) or not all(isinstance(one, str | int) for one in parts):
            return None
        if sum(isinstance(one, str) for one in parts) > 1:
            return None  # several prompts
        told = sent.tokens and len(sent.tokens) == sent.count
        if told:
            request["prompt"] = [*parts, *sent.tokens]
        else:
            request["prompt"] = prompt + sent.text if isinstance(prompt, str) else [*parts, sent.text]
        return request
    messages = _objects(asked.get("messages"))
    if not messages or messages[-1].get("role") == "assistant":
        return None
    begun: dict[str, object] = {"role": "assistant", "content": sent.text}
    if sent.dialect is Dialect.CHAT:
        request["add_generation_prompt"] = False
        request["continue_final_message"] = "content" if sent.text else "reasoning_content"
        if sent.reasoning:
            begun["reasoning_content"] = sent.reasoning
    request["messages"] = [*messages, begun]
    return request


def _shortened(request: dict[str, object], by: int) -> dict[str, object] | None:
    for name in _LENGTHS:
        most = request.get(name)
        if isinstance(most, int) and most > 0:
            if most <= by:
                return None
            request[name] = most - by
    return request


def as_the_rest(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    """An event of a run that went on behind `before` tokens, as the client of the whole answer sees it.

    None: the client has had it.
    """
    if sent.dialect is Dialect.NATIVE:
        return _counted(event, {"tokens_predicted": before, "tokens_evaluated": -before})
    if sent.dialect is Dialect.ANTHROPIC:
        if event.get("type") in ("message_start", "content_block_start") and not event.get("index"):
            return None
        return _anthropic_rest(event, sent, before)
    for choice in _objects(event.get("choices")):
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta and not delta.get("content"):
            return None
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return event
    return {**event, "usage": _counted(usage, {"completion_tokens": before, "prompt_tokens": -before})}


def _anthropic_rest(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    usage, delta = event.get("usage"), event.get("delta")
    if isinstance(usage, dict):
        return {**event, "usage": _counted(usage, {"output_tokens": before})}
    added = _text(delta, "text") if isinstance(delta, dict) else ""
    if not isinstance(delta, dict) or not added or sent.echoed == len(sent.echo):
        return event
    if sent.echo.startswith(added, sent.echoed):
        sent.echoed += len(added)
        return None
    rest, sent.echoed = sent.echo[sent.echoed :], len(sent.echo)  # no more of it comes
    return {**event, "delta": {**delta, "text": added.removeprefix(rest)}}


def _counted(values: Mapping[str, object], more: Mapping[str, int]) -> dict[str, object]:
    found = dict(values)
    for name, by in more.items():
        value = found.get(name)
        if _is_number(value):
            found[name] = value + by
    return found


def _is_number(value: object) -> TypeGuard[int]:
    """One that llama-server can mean. Who answers may be another node, and a sum may have too many digits."""
    return type(value) is int and 0 <= value < _NUMBERS


def _text(of: Mapping[str, object], name: str) -> str:
    value = of.get(name)
    return value if isinstance(value, str) else ""


def _objects(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
