"""Read, check and write fields of JSON from other programs; decide which of them llama-server gets.

A field may have any type until it is checked. A table lists the fields that the pinned llama-server takes for
each path of the API, with their types and bounds.

llama-server copies a client's fields into its own settings (tools/server/server-schema.cpp,
oaicompat_chat_params_parse) with few checks: some values crash it, take gigabytes, or keep it busy forever.
So fields that are not in this table are not passed on. Fields that a client may not decide are refused,
except for hints whose loss no client notices.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TypeGuard, TypeVar

from meshd.gateway.dialects.grammar_bounds import BeyondBounds, SchemaBudget, check_grammar, unenforced
from meshd.gateway.failure import HttpRefusal, invalid

_PIECES_DEEP = 2  # `data` of an answer, and each embedding of it
_NUMBERS = 1 << 31  # of tokens, and tokens themselves: those of llama-server have 32 bits
_PLAIN = frozenset({int, str, bool})  # types of values that need no further look
_Kind = TypeVar("_Kind")


def is_number(value: object) -> TypeGuard[int]:
    """Return True for an integer of a size that llama-server can give.

    The answer may come from another node, and a sum may have too many digits.
    """
    return type(value) is int and 0 <= value < _NUMBERS


def text_of(of: object, name: str) -> str:
    """Return a text field of an object; empty if it is missing or of another type."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, str) else ""


def object_of(of: object, name: str) -> dict[str, object]:
    """Return a field of an object that is an object itself; empty if it is missing or of another type."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, object]]:
    """Return the objects among the members of a list; empty if it is not a list."""
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


def optional(asked: Mapping[str, object], name: str, kind: type[_Kind], otherwise: str) -> _Kind | None:
    """Return a field that may be missing. Raises HttpRefusal with the message `otherwise`."""
    value = asked.get(name)
    if value is not None and not isinstance(value, kind):
        raise invalid(otherwise, name)
    return value


def check_number(
    asked: Mapping[str, object], name: str, least: float, most: float, *, whole: bool = False
) -> None:
    """Check an optional number. Raises HttpRefusal."""
    value = asked.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise invalid(f"{name}: expected {'a whole number' if whole else 'a number'}", name)
    if not least <= value <= most:
        bound = f"at least {least:g}" if value < least else f"at most {most:g}"
        raise invalid(f"{name}: must be {bound if value == value else 'a finite number'}", name)


def wants_stream(asked: Mapping[str, object]) -> bool:
    """Check `stream` and return it; False if omitted. Raises HttpRefusal."""
    return optional(asked, "stream", bool, "stream: expected true or false") is True


def levels(value: object) -> Iterator[list[object]]:
    """Yield the members of a JSON value level by level, beginning with itself.

    Lists and objects with only texts and whole numbers are not entered: a prompt may have a million tokens.
    """
    level = [value]
    while level:
        yield level
        parts = (list(of.values()) if isinstance(of, dict) else of for of in level)
        lists = [part for part in parts if isinstance(part, list)]
        level = [inner for part in lists if not _PLAIN.issuperset(map(type, part)) for inner in part]


def encoded(fields: object) -> bytes:
    """Write JSON for llama-server. Raises HttpRefusal that names a value that JSON cannot represent."""
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        place, what = _unsound(fields)
        raise invalid(what, place or None, code="invalid_json") from error


def _unsound(fields: object) -> tuple[str, str]:
    """Return the place of the first value that JSON cannot represent, and what it is."""
    unseen: list[tuple[str, object]] = [("", fields)]
    while unseen:
        place, value = unseen.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return place, f"`{place[:200]}` is not a number that JSON allows"
        names = list(value) if isinstance(value, dict) else [value] if isinstance(value, str) else []
        if not all(map(_is_unicode, names)):
            where = f"`{place[:200]}`" if isinstance(value, str) else f"a name in `{place[:200]}`"
            which = " (`\\ud800` to `\\udfff` alone)" if isinstance(value, str) else ""
            return place, f"{where} has an unpaired surrogate{which}, which is not valid text"
        if isinstance(value, dict):
            inner = [(f"{place}.{name}" if place else name, part) for name, part in value.items()]
            unseen += reversed(inner)
        elif isinstance(value, list):
            unseen += reversed([(f"{place}[{at}]", part) for at, part in enumerate(value)])
    return "", "the body is nested too deeply"


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def encoded_in_pieces(value: object, depth: int = _PIECES_DEEP) -> bytes:
    """Write a long answer, for a thread: in short calls of json.dumps, because each blocks all threads."""
    if depth and isinstance(value, dict):
        fields = (
            json.dumps(name).encode() + b": " + encoded_in_pieces(inner, depth - 1)
            for name, inner in value.items()
        )
        return b"{" + b", ".join(fields) + b"}"
    if depth and isinstance(value, list):
        return b"[" + b", ".join(encoded_in_pieces(inner, depth - 1) for inner in value) + b"]"
    return json.dumps(value).encode()


def with_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Append these fields to the JSON object `body`, which must not be empty.

    The client's bytes stay unchanged. If a name occurs twice, llama-server takes the last value.
    """
    return body.rstrip().removesuffix(b"}") + b"," + json.dumps(dict(fields)).encode().removeprefix(b"{")


_MOST_PENALIZED = 1 << 17  # tokens that penalties look back at; llama-server keeps room for all of them
_MOST_CHOICES = 64  # answers to one prompt; llama-server takes as many as it has slots
_MOST_STOP = 1024  # letters
_MOST_BIASED = 1024
_MOST_BIASED_TEXT = 64  # letters: each token of it counts
_MOST_PROMPTS = 2048  # as OpenAI's limit for embeddings
_MOST_TOKENS = 1 << 20  # of one prompt
_MOST_DEPTH = 64  # of any field: templates and schemas are read by recursion
_MOST_SAMPLERS = 32
_SAMPLER_LETTERS = {"i": "infill", "k": "top_k"}  # of a chain that is written as text
_MOST_FILLED = 256  # tokens that `infill` compares, each with each
_MOST_TEXT = 64 << 20
_INT = (1 << 31) - 1
_LONG = (1 << 63) - 1

Check = Callable[[object], str]
"""Returns what is allowed where a value is not, else nothing. Raises BeyondBounds, which says it itself."""


class Endpoint(StrEnum):
    """The kinds of requests to llama-server, into which dialects are translated."""

    CHAT = "chat"
    COMPLETION = "completion"  # OpenAI's and llama.cpp's
    INFILL = "infill"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    CONTROL = "control"  # of an answer under way


_COUNT = "/chat/completions/input_tokens"
_PATHS = {
    Endpoint.CHAT: ("/v1/chat/completions", f"/v1{_COUNT}", "/chat/completions", _COUNT, "/apply-template"),
    Endpoint.COMPLETION: ("/v1/completions", "/completion", "/completions"),
    Endpoint.INFILL: ("/infill",),
    Endpoint.EMBEDDINGS: ("/v1/embeddings", "/embedding", "/embeddings"),
    Endpoint.RERANK: ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"),
    Endpoint.TOKENIZE: ("/tokenize",),
    Endpoint.DETOKENIZE: ("/detokenize",),
    Endpoint.CONTROL: ("/v1/chat/completions/control",),
}
ENDPOINTS: Mapping[str, Endpoint] = {path: endpoint for endpoint, paths in _PATHS.items() for path in paths}


def _fits(allowed: str, test: Callable[[object], bool]) -> Check:
    """Return the check that a value passes `test`; else `allowed` is what is allowed."""
    return lambda value: "" if test(value) else allowed


def _is_in(value: object, low: float, high: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(low: int, high: int) -> Check:
    allowed = f"a whole number from {low} to {high}"
    return _fits(allowed, lambda value: _is_in(value, low, high) and value == int(value))


def _number(low: float, high: float) -> Check:
    return _fits(f"a number from {low:g} to {high:g}", lambda value: _is_in(value, low, high))


def _text(most: int = _MOST_TEXT) -> Check:
    allowed = "a string" if most == _MOST_TEXT else f"a string of at most {most} characters"
    return _fits(allowed, lambda value: isinstance(value, str) and len(value) <= most)


def _word(*words: str) -> Check:
    allowed = f"one of {', '.join(f'`{word}`' for word in words)}"
    return _fits(allowed, lambda value: isinstance(value, str) and value in words)


def _list(of: Check, most: int, what: str, *, least: int = 0) -> Check:
    allowed = f"a list of {'at least one and ' if least else ''}at most {most} {what}"

    def fits(value: object) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and not any(map(of, value))

    return _fits(allowed, fits)


def _either(*checks: Check) -> Check:
    def check(value: object) -> str:
        faults = [check(value) for check in checks]
        return ", or ".join(faults) if all(faults) else ""

    return check


_any = _fits("", lambda _value: True)  # checked elsewhere
_flag = _fits("true or false", lambda value: isinstance(value, bool))
_object = _fits("an object", lambda value: isinstance(value, dict))


def _objects(most: int) -> Check:
    return _list(_object, most, "objects")


class _Only:
    """The check of a field that the server decides: omitted if it has its default, else refused."""

    def __init__(self, default: object) -> None:
        self._default = default

    def __call__(self, value: object) -> str:
        """Return the description of the default if `value` differs from it, else an empty string."""
        is_default = value == self._default
        return "" if is_default else "only its default, because meshd decides this: omit the field"


_BIASED, _BIAS = _either(_whole(-1, _INT), _text(_MOST_BIASED_TEXT)), _number(-1000, 1000)


def _are_biases(value: object) -> bool:
    pairs = [[*pair] for pair in value.items()] if isinstance(value, dict) else value
    return (
        isinstance(pairs, list)
        and len(pairs) <= _MOST_BIASED
        and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        and not any(_BIASED(token) or (bias is not False and _BIAS(bias)) for token, bias in pairs)
    )


def _are_samplers(value: object) -> bool:
    """Check a chain of samplers, each of which, even an unknown one, costs time for each token."""
    names = list(value) if isinstance(value, str | list) else [None]
    known = {name.replace("-", "_") for name in names if isinstance(name, str)}
    return len(known) == len(names) <= _MOST_SAMPLERS


def _check_infill(sent: Mapping[str, object], *, has_form: bool) -> None:
    """Refuse the sampler `infill` with a form, or without `top_k` before it.

    It replaces the token by an end of text even if a grammar forbids it: then llama-server throws
    (llama-grammar.cpp of the pin, "Unexpected empty grammar stack") and ends. And it compares each token with
    every other (llama_sampler_infill_apply): a vocabulary of 50,000 takes half a minute for one token.
    """
    samplers = sent.get("samplers")
    listed = samplers if isinstance(samplers, str | list) else []
    names = [_SAMPLER_LETTERS.get(name, name.replace("-", "_")) for name in map(str, listed)]
    if "infill" not in names:
        return
    if has_form:
        why = "may choose a token that a grammar forbids: use it outside chats, and without a grammar"
        raise _refused("samplers", f"`infill` {why}")
    # llama-server's default of `top_k` is 40
    if "top_k" not in names[: names.index("infill")] or not _is_in(sent.get("top_k", 1), 1, _MOST_FILLED):
        why = f"compares each token with each other: put `top_k` before it, from 1 to {_MOST_FILLED}"
        raise _refused("samplers", f"`infill` {why}")


def _grammar(value: object) -> str:
    if not isinstance(value, str):
        return "a string: a grammar in GBNF"
    check_grammar(value)
    return ""


def _tokens(*kinds: type) -> Check:
    """Return a check of a prompt of tokens, which is fast because it may have a million of them."""

    def are_tokens(value: object) -> bool:
        if (
            not isinstance(value, list)
            or len(value) > _MOST_TOKENS
            or not {*kinds}.issuperset(map(type, value))
        ):
            return False
        numbers = [token for token in value if isinstance(token, int)]
        return not numbers or (min(numbers) >= 0 and max(numbers) <= _INT)

    allowed = f"a list of at most {_MOST_TOKENS} tokens"
    return _fits(f"{allowed} or strings" if str in kinds else allowed, are_tokens)


def _several(check_prompt: Check) -> Check:
    """Return a check of one prompt or a list of them.

    A list with a number in it is one prompt, else each entry is one (tokenize_input_prompts).
    """
    several = _list(check_prompt, _MOST_PROMPTS, "prompts, each a string or a list of tokens", least=1)

    def check(value: object) -> str:
        is_one = not isinstance(value, list) or any(isinstance(part, int) for part in value)
        return check_prompt(value) if is_one else several(value)

    return check


def _all(check: Check, *names: str) -> Mapping[str, Check]:
    """Return the rows of fields that have the same check."""
    return dict.fromkeys(names, check)


_MIXED = _tokens(int, str)
_PROMPT_STRING = "prompt_string"
_PROMPT_OBJECT = _fits(
    f"`{{{_PROMPT_STRING}: TEXT}}`",
    lambda value: isinstance(value, dict) and isinstance(value.get(_PROMPT_STRING), str),
)
_PROMPT = _either(_text(), _MIXED, _PROMPT_OBJECT)
_TEXTS = _list(_text(), _MOST_PROMPTS, "strings", least=1)
_STOPS = _list(_text(_MOST_STOP), 64, f"strings of at most {_MOST_STOP} characters")
_LOGPROBS = _whole(0, 20)  # of each token; as OpenAI's `top_logprobs`
# a default that the server decides: how it runs is not for a client to say
_FALSE, _ZERO, _EMPTY, _NONE, _ONE = _Only(False), _Only(0), _Only(""), _Only([]), _Only(1)

_OUTPUT: Mapping[str, Check] = {
    "model": _any,
    "user": _text(4096),
    **_all(_flag, "stream", "timings_per_token", "cache_prompt", "return_tokens", "return_progress"),
    **_all(_flag, "ignore_eos", "post_sampling_probs"),
    "stream_options": _object,
    **_all(
        _whole(-1, _INT), "n_predict", "max_tokens", "max_completion_tokens", "n_keep", "sse_ping_interval"
    ),
    "n_indent": _whole(0, 1 << 16),
    **_all(_whole(1, _MOST_CHOICES), "n_cmpl", "n"),
    "t_max_predict_ms": _whole(-1, _LONG),
    "response_fields": _list(_text(256), 64, "names of at most 256 characters"),
    "stop": _either(_text(_MOST_STOP), _STOPS),
    "logit_bias": _fits(
        f"at most {_MOST_BIASED} tokens, or strings of at most {_MOST_BIASED_TEXT} characters, each with a "
        "number from -1000 to 1000 or false: `{TOKEN: BIAS}` or `[[TOKEN, BIAS]]`",
        _are_biases,
    ),
    "n_probs": _LOGPROBS,
    **_all(_ZERO, "n_discard", "n_cache_reuse"),
    "lora": _NONE,
}
_SAMPLING: Mapping[str, Check] = {
    "seed": _whole(-(1 << 63), (1 << 64) - 1),
    "samplers": _fits(
        f"a list of at most {_MOST_SAMPLERS} names of samplers, without duplicates", _are_samplers
    ),
    "min_keep": _whole(0, 1000),
    "top_k": _whole(-1, _INT),
    **_all(_number(0, 1), "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"),
    "top_n_sigma": _number(-1e30, 1e30),
    **_all(
        _number(0, 100), "temperature", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base"
    ),
    **_all(_whole(0, _MOST_PENALIZED), "repeat_last_n", "dry_penalty_last_n"),
    "repeat_penalty": _number(0.01, 100),
    **_all(_number(-100, 100), "frequency_penalty", "presence_penalty"),
    "dry_allowed_length": _whole(0, _INT),
    # llama.cpp goes through its vocabulary for each
    "dry_sequence_breakers": _list(_text(64), 32, "strings of at most 64 characters", least=1),
    "mirostat": _whole(0, 2),
    **_all(_number(0, 1000), "mirostat_tau", "mirostat_eta"),
    "adaptive_target": _number(-1, 1),
    "adaptive_decay": _number(0, 0.99),
    "backend_sampling": _flag,
}
_FORMS: Mapping[str, Check] = {
    "grammar": _grammar,
    "json_schema": _object,
    # of a meshd client that continues an answer, see continuation.py
    "generation_prompt": _text(),
    "grammar_type": _word("tool_calls"),
    # with a grammar, these decide when llama-server begins to look at it: it makes them itself
    "grammar_lazy": _FALSE,
    **_all(_NONE, "grammar_triggers", "preserved_tokens"),
    "chat_parser": _EMPTY,
    "chat_format": _ZERO,
    "parse_tool_calls": _flag,
}
_CHAT: Mapping[str, Check] = {
    "messages": _objects(1 << 16),
    "tools": _objects(1024),
    "tool_choice": _either(_text(256), _object),
    **_all(_flag, "parallel_tool_calls", "add_generation_prompt", "logprobs", "echo", "reasoning_control"),
    **_all(_object, "chat_template_kwargs", "response_format"),
    "continue_final_message": _either(_flag, _text(64)),
    "top_logprobs": _LOGPROBS,
    "reasoning_format": _word("none", "auto", "deepseek", "deepseek-legacy"),
    **_all(_whole(-1, _INT), "reasoning_budget_tokens", "thinking_budget_tokens"),
    "reasoning_budget_message": _text(4096),
    "reasoning_effort": _text(64),
}
_GENERATED = {**_OUTPUT, **_SAMPLING, **_FORMS}
_TABLE: Mapping[Endpoint, Mapping[str, Check]] = {
    Endpoint.CHAT: {**_GENERATED, **_CHAT},
    Endpoint.COMPLETION: {
        **_GENERATED,
        "prompt": _several(_PROMPT),
        "logprobs": _LOGPROBS,
        "echo": _FALSE,
        "suffix": _EMPTY,
        "best_of": _ONE,
    },
    Endpoint.INFILL: {
        **_GENERATED,
        **_all(_text(), "prompt", "input_prefix", "input_suffix"),
        "input_extra": _objects(4096),
        "logprobs": _LOGPROBS,
    },
    Endpoint.EMBEDDINGS: {
        "model": _any,
        **_all(_several(_either(_PROMPT, _object)), "input", "content"),
        "encoding_format": _word("float", "base64"),
        "embd_normalize": _whole(-1, 1000),
    },
    Endpoint.RERANK: {
        "model": _any,
        "query": _text(),
        **_all(_TEXTS, "documents", "texts"),
        "top_n": _whole(0, _INT),
        "return_text": _flag,
    },
    Endpoint.TOKENIZE: {
        "model": _any,
        "content": _either(_text(), _MIXED),
        **_all(_flag, "add_special", "parse_special", "with_pieces"),
    },
    Endpoint.DETOKENIZE: {"model": _any, "tokens": _tokens(int)},
    # The id of an answer is 32 random letters, which only its client has seen: whoever knows it may end its
    # reasoning.
    Endpoint.CONTROL: {"model": _any, "id": _text(128), "action": _word("reasoning_end")},
}
_COUNTED = ("tokens_predicted", "tokens_evaluated")
# Of these llama-server takes the default where they are null, as of all that it reads by name and value.
_NEVER_NULL = frozenset({"messages", "prompt", "input", "content", "query", "documents", "texts", "tokens"})


def fields_of(endpoint: Endpoint) -> Mapping[str, Check]:
    """Return the fields of one endpoint, with their checks."""
    return _TABLE[endpoint]


def judged(asked: Mapping[str, object], endpoint: Endpoint) -> dict[str, object]:
    """Return the fields of this request that llama-server gets: those in its table, within their bounds.

    Raises HttpRefusal 400, which names the field, what was wrong and what is allowed.
    """
    table = _TABLE[endpoint]
    sent: dict[str, object] = {}
    # a short field that is refused spares the work for long ones
    for name, value in sorted(asked.items(), key=lambda item: isinstance(item[1], list | dict)):
        check = table.get(name)
        if check is None or (value is None and name not in _NEVER_NULL):
            continue  # a field of another server, or the default
        try:
            allowed = _flaw(value) or check(value)
        except BeyondBounds as beyond:
            raise _refused(name, str(beyond)) from None
        if allowed:
            raise _refused(name, f"got {_shown(value)}; allowed: {allowed}")
        if not isinstance(check, _Only):
            sent[name] = value
    _check_schemas(sent)
    _check_infill(sent, has_form=endpoint is Endpoint.CHAT or not _FORMS.keys().isdisjoint(sent))
    if shaped := sent.get("response_fields"):  # what an answer takes is counted, however it is shaped
        sent["response_fields"] = [*shaped, *_COUNTED] if isinstance(shaped, list) else shaped
    return sent


def not_enforced(sent: Mapping[str, object]) -> tuple[str, ...]:
    """Name the demands of the answer's schema that llama-server does not enforce, to tell the client.

    `sent`: as `judged` returned it. Schemas of tools are not reported, because they are also hints to the
    model.
    """
    schemas = [*_schemas("json_schema", sent), *_schemas("response_format", sent)]
    found = dict.fromkeys(name for schema in schemas for name in unenforced(schema))
    return tuple(f"{name} in the schema" for name in found)


def _flaw(value: object) -> str:
    """Return the flaw of a value: nested too deeply, or with a number that JSON cannot represent; else ""."""
    for depth, level in enumerate(levels(value)):
        if depth > _MOST_DEPTH:
            return f"lists and objects nested at most {_MOST_DEPTH} deep"
        numbers = (member for member in level if isinstance(member, int | float))
        if any(not abs(number) <= sys.float_info.max for number in numbers):
            return "finite numbers, at most 1.8e308"
    return ""


def _check_schemas(sent: Mapping[str, object]) -> None:
    """Check all schemas of a request together, because llama-server makes one grammar of them."""
    budget = SchemaBudget()
    for name in ("json_schema", "response_format", "tools"):
        try:
            for schema in _schemas(name, sent):
                budget.check(schema)
        except BeyondBounds as beyond:
            raise _refused(name, str(beyond)) from None


def _schemas(name: str, sent: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the schemas in a field."""
    value = sent.get(name)
    if name == "json_schema":
        return objects_of([value])
    if name == "response_format":
        holders = (object_of(sent, name), object_of(value, "json_schema"))
        return objects_of([holder.get("schema") for holder in holders])
    return objects_of([object_of(tool, "function").get("parameters") for tool in objects_of(value)])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return f"`{text[:60]}{'…' if len(text) > 60 else ''}`"


def _refused(name: str, why: str) -> HttpRefusal:
    return invalid(f"`{name}`: {why}", name, code="invalid_value")


_LISTS = {
    Endpoint.COMPLETION: ("prompt",),
    Endpoint.EMBEDDINGS: ("input", "content"),
    Endpoint.RERANK: ("documents", "texts"),
}
CHOICE_FIELDS = ("n_cmpl", "n")  # the first that is there is meant
_WITH_CHOICES = (Endpoint.CHAT, Endpoint.COMPLETION, Endpoint.INFILL)


def count_answers(asked: Mapping[str, object], endpoint: Endpoint) -> int:
    """Return the number of answers that a request asks for: prompts times choices."""
    _, prompts = prompts_of(asked, endpoint)
    return max(1, len(prompts)) * choices_of(asked, endpoint)


def prompts_of(asked: Mapping[str, object], endpoint: Endpoint) -> tuple[str, list[object]]:
    """Return the name of the field with several prompts, and the prompts; empty for a single prompt."""
    for name in _LISTS.get(endpoint, ()):
        value = asked.get(name)
        if isinstance(value, list) and len(value) > 1 and not any(isinstance(part, int) for part in value):
            return name, value
    return "", []


def choices_of(asked: Mapping[str, object], endpoint: Endpoint) -> int:
    """Return the number of answers per prompt that a request asks for."""
    names = CHOICE_FIELDS if endpoint in _WITH_CHOICES else ()
    count = next((asked[name] for name in names if name in asked), 1)
    return int(count) if isinstance(count, int | float) else 1
