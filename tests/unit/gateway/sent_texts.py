"""What clients were sent of answers, in each dialect."""

from collections.abc import Mapping

from meshd.gateway.sent_text import Dialect, SentText

CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "hi"}]}


def native(*pieces: tuple[str, int], dialect: Dialect = Dialect.NATIVE) -> SentText:
    sent = SentText(dialect)
    for number, (text, token) in enumerate(pieces):
        sent.see({"index": 0, "content": text, "tokens": [token], "tokens_predicted": number + 1})
    return sent


def chat(*pieces: str, reasoning: str = "") -> SentText:
    sent = SentText(Dialect.CHAT)
    if reasoning:
        sent.see({"choices": [{"index": 0, "delta": {"reasoning_content": reasoning}}]})
    for piece in pieces:
        sent.see({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
    return sent


def call(number: int, arguments: str, name: str = "") -> dict[str, object]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    one = {"index": number, **({"id": f"id-{number}", "type": "function"} if name else {})}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{**one, "function": function}]}}]}


def called(*calls: tuple[str, str], text: str = "") -> SentText:
    sent = chat(*([text] if text else []))
    for number, (name, arguments) in enumerate(calls):
        sent.see(call(number, arguments[:1], name))
        sent.see(call(number, arguments[1:]))
    return sent


def tool_use(number: int, name: str) -> dict[str, object]:
    block = {"type": "tool_use", "id": f"id-{number}", "name": name, "input": {}}
    return {"type": "content_block_start", "index": number, "content_block": block}


def input_json(number: int, arguments: str) -> dict[str, object]:
    delta = {"type": "input_json_delta", "partial_json": arguments}
    return {"type": "content_block_delta", "index": number, "delta": delta}


def anthropic(*events: Mapping[str, object]) -> SentText:
    sent = SentText(Dialect.ANTHROPIC)
    for one in events:
        sent.see(one)
    return sent


BEGIN: Mapping[str, object] = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}


def delta(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def block(kind: str, index: int) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, kind: ""}}


def thinks(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}


def says(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": text}}


def responses(*events: tuple[str, Mapping[str, object]]) -> SentText:
    sent = SentText(Dialect.RESPONSES)
    for kind, fields in events:
        sent.see(response(kind, **fields))
    return sent


def response(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", **fields}


def added(kind: str, **fields: object) -> tuple[str, Mapping[str, object]]:
    return "output_item.added", {"item": {"type": kind, **fields}}


def piece(kind: str, text: str) -> tuple[str, Mapping[str, object]]:
    return f"{kind}.delta", {"delta": text}
