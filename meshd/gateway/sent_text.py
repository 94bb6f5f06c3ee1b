"""What a client has been sent of a streamed answer: text, reasoning and calls of tools. Pure."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO

from meshd.gateway.begun_calls import SentCall
from meshd.gateway.echo import Echo
from meshd.gateway.json_fields import is_number, objects_of, text_of

_MOST_KEPT = 4 << 20  # letters and tokens of an answer: 131,072 tokens have about half a million letters
_MOST_CALLS = 64  # of tools, in one answer
_CALL_NAME_LETTERS = 256  # letters of the id and of the name of a call


class Dialect(StrEnum):
    """Of requests and events that can be continued."""

    NATIVE = "native"
    COMPLETION = "completion"
    CHAT = "chat"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"


DIALECTS: Mapping[str, Dialect] = {
    "/completion": Dialect.NATIVE,
    "/completions": Dialect.NATIVE,
    "/v1/completions": Dialect.COMPLETION,
    "/chat/completions": Dialect.CHAT,
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/messages": Dialect.ANTHROPIC,
    "/responses": Dialect.RESPONSES,
    "/v1/responses": Dialect.RESPONSES,
}


@dataclass(slots=True)
class SentText:
    """What a client has been sent. `is_text` False: more than text and calls, of more than one answer, or too
    much."""

    dialect: Dialect
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    count: int = 0  # of tokens, or of pieces where it is not told
    is_text: bool = True
    is_over: bool = False
    calls: list[SentCall] = field(default_factory=list)
    has_begun_text: bool = False  # a block or an item for it, of which the first letters may be still to come
    has_begun_part: bool = False  # of the item
    written: str | None = None  # what the model wrote for them
    # not lists: of short pieces those would hold many times their letters
    _said: StringIO = field(default_factory=StringIO)
    _thought: StringIO = field(default_factory=StringIO)
    _kept: int = 0
    echo: Echo = field(
        default_factory=lambda: Echo("", "", [])
    )  # of a run that goes on behind what the client has

    @property
    def text(self) -> str:
        return self._said.getvalue()

    @property
    def reasoning(self) -> str:
        return self._thought.getvalue()

    @property
    def has_text(self) -> bool:
        """Or is about to."""
        return self.has_begun_text or self._said.tell() > 0  # without a copy of it for each event

    @property
    def _has_thought(self) -> bool:
        return self._thought.tell() > 0

    def see(self, event: Mapping[str, object]) -> None:
        """One event, by its JSON."""
        if not self.is_text:
            return
        match self.dialect:
            case Dialect.NATIVE:
                self._native(event)
            case Dialect.ANTHROPIC:
                self._anthropic(event)
            case Dialect.RESPONSES:
                self._responses(event)
            case _:
                self._choices(event)
        if self._kept > _MOST_KEPT:
            self.is_text = False
        if not self.is_text:
            self._said, self._thought, self.tokens, self.calls = StringIO(), StringIO(), array("i"), []

    def goes_on(self) -> None:
        """The rest of what it is now will be asked for."""
        self.echo = Echo(self.text, self.reasoning, self.calls)
        self.echo.has_text, self.echo.has_part = self.has_text, self.has_begun_part

    def _add(self, said: str, thought: str = "") -> None:
        """The model says nothing behind a call, and thinks before it speaks."""
        has_more = bool(said or thought)
        self.is_text &= not (self.calls and has_more)
        self._kept += self._said.write(said) + self._thought.write(thought)
        self.count += has_more

    def _native(self, event: Mapping[str, object]) -> None:
        self.is_over |= event.get("stop") is True
        self.is_text &= event.get("index", 0) == 0
        tokens, count = event.get("tokens"), event.get("tokens_predicted")
        if isinstance(tokens, list):
            self.tokens.extend(one for one in tokens if is_number(one))
            self._kept += len(tokens)
        self._add(text_of(event, "content"))
        if is_number(count):
            self.count = count

    def _choices(self, event: Mapping[str, object]) -> None:
        for choice in objects_of(event.get("choices")):
            self.is_text &= choice.get("index", 0) == 0
            self.is_over |= choice.get("finish_reason") is not None
            delta = choice.get("delta")
            of = delta if isinstance(delta, dict) else choice
            self._add(text_of(of, "content") + text_of(of, "text"), text_of(of, "reasoning_content"))
            for call in objects_of(of.get("tool_calls")):
                self._called(call.get("index"), text_of(call, "id"), call.get("function"))

    def _called(self, number: object, id: str, function: object) -> None:
        """More of a call."""
        most = min(len(self.calls), _MOST_CALLS - 1)
        if not is_number(number) or not isinstance(function, dict) or number > most:
            self.is_text = False
            return
        if number == len(self.calls):
            self.calls.append(SentCall())
        self.is_text &= number == len(self.calls) - 1
        one = self.calls[-1]
        one.id, one.name = one.id or id, one.name or text_of(function, "name")
        self.is_text &= max(len(one.id), len(one.name)) <= _CALL_NAME_LETTERS
        self._kept += one.arguments.write(text_of(function, "arguments"))
        self.count += 1

    def _anthropic(self, event: Mapping[str, object]) -> None:
        kind, block, delta = event.get("type"), event.get("content_block"), event.get("delta")
        if kind == "content_block_start" and isinstance(block, dict):
            what, number = block.get("type"), event.get("index", 0)
            if what == "tool_use":
                self._called(self.call_of(event), text_of(block, "id"), block)
            else:
                self.is_text &= what in ("text", "thinking")
                self.has_begun_text |= what == "text"
                self.is_text &= number == (self._has_thought if what == "text" else 0)
        elif kind == "content_block_delta" and isinstance(delta, dict) and "partial_json" in delta:
            self._called(self.call_of(event), "", {"arguments": delta["partial_json"]})
        elif kind == "content_block_delta" and isinstance(delta, dict):
            self._add(text_of(delta, "text"), text_of(delta, "thinking"))
        self.is_over |= kind in ("content_block_stop", "message_delta", "message_stop")

    def call_of(self, event: Mapping[str, object]) -> int:
        """The number of the call that an event of Anthropic's is of, if it is of one."""
        index = event.get("index")
        return index - self._has_thought - self.has_text if is_number(index) else -1

    def _responses(self, event: Mapping[str, object]) -> None:
        kind, item = text_of(event, "type").removeprefix("response."), event.get("item")
        if kind == "output_item.added" and isinstance(item, dict):
            if item.get("type") == "function_call":
                self._called(len(self.calls), text_of(item, "call_id"), item)
            else:
                self.is_text &= item.get("type") in ("message", "reasoning")
                self.has_begun_text |= item.get("type") == "message"
        elif kind == "content_part.added":
            self.has_begun_part = True
        elif kind == "output_text.delta":
            self._add(text_of(event, "delta"))
        elif kind == "reasoning_text.delta":
            self._add("", text_of(event, "delta"))
        elif kind == "function_call_arguments.delta":
            self._called(len(self.calls) - 1, "", {"arguments": event.get("delta")})
        self.is_over |= kind.endswith(".done") or kind in ("completed", "failed", "incomplete")
