"""How a request is put so that llama-server goes on behind the text that a client has. Pure.

The prompt becomes the prompt with that text behind it: as tokens where the answer told them, else as text; of
a chat it is the beginning of the assistant's message, with calls of tools as the template writes them
(begun_calls.py). A grammar is moved on by the same text: llama-server feeds it what it calls the generation
prompt. Fewer tokens remain to be generated, and the numbers at the end count all of them.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO
from typing import TypeGuard

from meshd.gateway.begun_calls import SentCall, as_a_chat, template_questions
from meshd.gateway.echo import ChatEcho

_MOST_KEPT = 4 << 20  # letters and tokens of an answer: 131,072 tokens have about half a million letters
_MOST_CALLS = 64  # of tools, in one answer
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
# What they ask for depends on more than the text so far, or is what the rest is asked for with.
_STATE = ("echo", "suffix", "thinking", "generation_prompt", "grammar_type", "continue_final_message")
# These say which text may come next, so what was sent moves them on.
_FORMS = ("grammar", "json_schema", "response_format")
# A chat's own grammar is fed nothing: what comes before the answer would not fit it.
_CONTINUED_FORMS: Mapping[Dialect, frozenset[str]] = {
    Dialect.NATIVE: frozenset({"grammar", "json_schema"}),
    Dialect.COMPLETION: frozenset({"grammar", "json_schema"}),
    Dialect.CHAT: frozenset({"json_schema", "response_format"}),
    Dialect.ANTHROPIC: frozenset(),
}
_SEVERAL = ("n", "n_cmpl", "best_of")
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")


@dataclass(slots=True)
class SentText:
    """What a client has been sent. `is_text` False: more than text and calls, of more than one answer, or too
    much."""

    dialect: Dialect
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    count: int = 0  # of tokens, or of pieces where it is not told
    is_text: bool = True
    is_over: bool = False
    echo: str = ""  # of the text that was asked to be continued: some dialects begin with it once more
    echoed: int = 0  # so many letters of it have come
    calls: list[SentCall] = field(default_factory=list)
    written: str | None = None  # what the model wrote for them
    # not lists: of short pieces those would hold many times their letters
    _said: StringIO = field(default_factory=StringIO)
    _thought: StringIO = field(default_factory=StringIO)
    _kept: int = 0
    chat_echo: ChatEcho | None = None  # of a run that begins with all of it

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
            self._said, self._thought, self.tokens, self.calls = StringIO(), StringIO(), array("i"), []

    def goes_on(self) -> None:
        """The rest of what it is now will be asked for."""
        self.echo, self.echoed = self.text, 0
        self.chat_echo = ChatEcho(self.text, self.reasoning, self.calls) if self.calls else None

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
            said, thought = _text(of, "content") + _text(of, "text"), _text(of, "reasoning_content")
            self.is_text &= not (self.calls and (said or thought))
            self.count += self._add(said, thought)
            for call in _objects(of.get("tool_calls")):
                self.count += self._called(call)

    def _called(self, call: Mapping[str, object]) -> bool:
        """Whether there is more of it."""
        number, function = call.get("index"), call.get("function")
        most = min(len(self.calls), _MOST_CALLS - 1)
        if not _is_number(number) or not isinstance(function, dict) or number > most:
            self.is_text = False
            return False
        if number == len(self.calls):
            self.calls.append(SentCall())
        self.is_text &= number == len(self.calls) - 1
        one, arguments = self.calls[-1], _text(function, "arguments")
        one.id, one.name = one.id or _text(call, "id"), one.name or _text(function, "name")
        self._kept += one.arguments.write(arguments)
        return True

    def _anthropic(self, event: Mapping[str, object]) -> None:
        kind, block, delta = event.get("type"), event.get("content_block"), event.get("delta")
        number = self.call_of(event)
        if kind == "content_block_start" and isinstance(block, dict) and block.get("type") == "tool_use":
            self.count += self._called({"index": number, "id": block.get("id"), "function": block})
        elif kind == "content_block_start":
            self.is_text &= isinstance(block, dict) and block.get("type") == "text" and not event.get("index")
        elif kind == "content_block_delta" and isinstance(delta, dict) and "partial_json" in delta:
            arguments = _text(delta, "partial_json")
            self.count += self._called({"index": number, "function": {"arguments": arguments}})
        elif kind == "content_block_delta" and isinstance(delta, dict):
            said = _text(delta, "text")
            self.is_text &= not (self.calls and said)
            self.count += self._add(said)
        self.is_over |= kind in ("content_block_stop", "message_delta", "message_stop")

    def call_of(self, event: Mapping[str, object]) -> int:
        """The number of the call that an event of Anthropic's is of, if it is of one."""
        index = event.get("index")
        return index - bool(self.text) if _is_number(index) else -1


def continued(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    """The request for the rest; None where it cannot be put so."""
    if not _can_go_on(asked, sent) or (sent.calls and sent.written is None):
        return None
    request = _with_text(asked, sent)
    return None if request is None else _shortened(request, sent.count)


def _can_go_on(asked: Mapping[str, object], sent: SentText) -> bool:
    if not sent.is_text or sent.is_over or not (sent.text or sent.reasoning or sent.calls):
        return False
    if any(asked.get(name) for name in _STATE) or any(
        asked.get(name, 1) not in (1, None) for name in _SEVERAL
    ):
        return False
    forms = {name for name in _FORMS if asked.get(name)}
    if not forms <= _CONTINUED_FORMS[sent.dialect]:
        return False
    return sent.dialect is Dialect.CHAT or _is_free(asked) or sent.dialect is Dialect.ANTHROPIC


def unwritten_calls(asked: Mapping[str, object], sent: SentText) -> tuple[bytes, bytes] | None:
    """What is to be known of the template before the rest can be asked for; None: nothing."""
    if not sent.calls or not _can_go_on(asked, sent):
        return None
    if sent.dialect is Dialect.ANTHROPIC:
        asked = as_a_chat(asked)
    return template_questions(asked, sent.calls)


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
        has_form = any(asked.get(name) for name in _FORMS)
        if has_form:
            request["generation_prompt"] = sent.text
            request |= {"grammar_type": "tool_calls"} if asked.get("grammar") else {}
        # a grammar is moved on by text, and the last of the tokens may be half a letter
        if sent.tokens and len(sent.tokens) == sent.count and not has_form:
            request["prompt"] = [*parts, *sent.tokens]
        else:
            request["prompt"] = prompt + sent.text if isinstance(prompt, str) else [*parts, sent.text]
        return request
    messages = _objects(asked.get("messages"))
    if not messages or messages[-1].get("role") == "assistant":
        return None
    content = sent.text + (sent.written or "")
    begun: dict[str, object] = {"role": "assistant", "content": content}
    if sent.dialect is Dialect.CHAT:
        request["add_generation_prompt"] = False
        request["continue_final_message"] = "content" if content else "reasoning_content"
        if sent.reasoning:
            begun["reasoning_content"] = sent.reasoning
        if sent.calls:
            # what the parser makes of the beginning may be less than was sent: all is told, and compared
            request["echo"] = True
    if sent.calls and _is_free(asked):  # else the grammar would wait for the beginning of a call
        request["tool_choice"] = {"type": "any"} if sent.dialect is Dialect.ANTHROPIC else "required"
    request["messages"] = [*messages, begun]
    return request


def _is_free(asked: Mapping[str, object]) -> bool:
    """To call a tool or not."""
    choice = asked.get("tool_choice")
    return (choice.get("type") if isinstance(choice, dict) else choice) in (None, "auto", "none")


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

    None: the client has had it. Raises OtherAnswer.
    """
    if sent.dialect is Dialect.NATIVE:
        return _counted(event, {"tokens_predicted": before, "tokens_evaluated": -before})
    if sent.dialect is Dialect.ANTHROPIC:
        known = bool(sent.echo) + (sent.chat_echo.calls if sent.chat_echo is not None else 0)
        index = event.get("index", 0)
        begins = event.get("type") in ("message_start", "content_block_start")
        if begins and _is_number(index) and index < max(1, known):
            return None
        return _anthropic_rest(event, sent, before)
    for choice in _objects(event.get("choices")):
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta and not delta.get("content"):
            return None
        if isinstance(delta, dict) and delta and sent.chat_echo is not None:
            fresh = sent.chat_echo.fresh(delta)
            if not fresh and choice.get("finish_reason") is None:
                return None
            event = {**event, "choices": [{**choice, "delta": fresh}]}
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return event
    return {**event, "usage": _counted(usage, {"completion_tokens": before, "prompt_tokens": -before})}


def _anthropic_rest(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    usage, delta = event.get("usage"), event.get("delta")
    if isinstance(usage, dict):
        return {**event, "usage": _counted(usage, {"output_tokens": before})}
    if isinstance(delta, dict) and "partial_json" in delta and sent.chat_echo is not None:
        fresh = sent.chat_echo.fresh_arguments(sent.call_of(event), _text(delta, "partial_json"))
        return {**event, "delta": {**delta, "partial_json": fresh}} if fresh else None
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
