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
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeGuard

from meshd.gateway.dialects.grammar_bounds import BeyondBounds, SchemaBudget, check_grammar, unenforced
from meshd.gateway.failure import Failure, HttpRefusal, invalid

_PIECES_DEEP = 2  # `data` of an answer, and each embedding of it
_NUMBERS = 1 << 31  # of tokens, and tokens themselves: those of llama-server have 32 bits


def is_number(value: object) -> TypeGuard[int]:
    """Return True for an integer of a size that llama-server can give.

    The answer may come from another node, and a sum may have too many digits.
    """
    return type(value) is int and 0 <= value < _NUMBERS


def text_of(of: Mapping[str, object], name: str) -> str:
    """Return a text field; empty if it is missing or of another type."""
    value = of.get(name)
    return value if isinstance(value, str) else ""


def objects_of(value: object) -> list[dict[str, object]]:
    """Return the objects among the members of a list; empty if it is not a list."""
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


def encoded(fields: object) -> bytes:
    """Write JSON for llama-server. Raises HttpRefusal that names a value that JSON cannot represent."""
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        place, what = _unsound(fields)
        raise HttpRefusal(Failure(400, what, code="invalid_json", param=place or None)) from error


def _unsound(fields: object) -> tuple[str, str]:
    """Return the place of the first value that JSON cannot represent, and what it is."""
    unseen: list[tuple[str, object]] = [("", fields)]
    while unseen:
        place, value = unseen.pop()
        here = f"`{place[:200]}`"
        if isinstance(value, float) and not math.isfinite(value):
            return place, f"{here} is not a number that JSON allows"
        if isinstance(value, str) and not _is_unicode(value):
            return (
                place,
                f"{here} has an unpaired surrogate (`\\ud800` to `\\udfff` alone), which is not valid text",
            )
        if isinstance(value, dict):
            if any(not _is_unicode(name) for name in value):
                return place, f"a name in {here} has an unpaired surrogate, which is not valid text"
            unseen += [
                (f"{place}.{name}" if place else name, inner) for name, inner in reversed(value.items())
            ]
        elif isinstance(value, list):
            unseen += [(f"{place}[{at}]", inner) for at, inner in reversed(list(enumerate(value)))]
    return "", "the body is nested too deeply"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
_MOST_PROBABILITIES = 20  # of each token; as OpenAI's `top_logprobs`
_MOST_CHOICES = 64  # answers to one prompt; llama-server takes as many as it has slots
_MOST_STOPS = 64
_MOST_STOP = 1024  # letters
_MOST_BIASED = 1024
_MOST_BIASED_TEXT = 64  # letters: each token of it counts
_MOST_PROMPTS = 2048  # as OpenAI's limit for embeddings
_MOST_TOKENS = 1 << 20  # of one prompt
_MOST_DEPTH = 64  # of any field: templates and schemas are read by recursion
_MOST_SAMPLERS = 32
_SAMPLER_LETTERS = {"i": "infill", "k": "top_k"}  # of a chain that is written as text
_MOST_FILLED = 256  # tokens that `infill` compares, each with each
_MOST_BREAKERS = 32  # llama.cpp goes through its vocabulary for each
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


_PATHS = {
    Endpoint.CHAT: (
        "/v1/chat/completions",
        "/v1/chat/completions/input_tokens",
        "/chat/completions",
        "/chat/completions/input_tokens",
        "/apply-template",
    ),
    Endpoint.COMPLETION: ("/v1/completions", "/completion", "/completions"),
    Endpoint.INFILL: ("/infill",),
    Endpoint.EMBEDDINGS: ("/v1/embeddings", "/embedding", "/embeddings"),
    Endpoint.RERANK: ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"),
    Endpoint.TOKENIZE: ("/tokenize",),
    Endpoint.DETOKENIZE: ("/detokenize",),
}
ENDPOINTS: Mapping[str, Endpoint] = {path: endpoint for endpoint, paths in _PATHS.items() for path in paths}


def _whole(low: int, high: int) -> Check:
    allowed = f"a whole number from {low} to {high}"

    def check(value: object) -> str:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if fits else allowed

    return check


def _number(low: float, high: float) -> Check:
    allowed = f"a number from {low:g} to {high:g}"

    def check(value: object) -> str:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return "" if fits else allowed

    return check


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _any(_value: object) -> str:
    """Accept any value, because it is checked elsewhere."""
    return ""


def _text(most: int = _MOST_TEXT) -> Check:
    allowed = "a string" if most == _MOST_TEXT else f"a string of at most {most} characters"
    return lambda value: "" if isinstance(value, str) and len(value) <= most else allowed


def _word(*words: str) -> Check:
    allowed = f"one of {', '.join(f'`{word}`' for word in words)}"
    return lambda value: "" if isinstance(value, str) and value in words else allowed


def _list(of: Check, most: int, what: str, *, least: int = 0) -> Check:
    def check(value: object) -> str:
        if (
            not isinstance(value, list)
            or not least <= len(value) <= most
            or any(of(member) for member in value)
        ):
            return f"a list of {'at least one and ' if least else ''}at most {most} {what}"
        return ""

    return check


def _either(*checks: Check) -> Check:
    def check(value: object) -> str:
        faults = [check(value) for check in checks]
        return ", or ".join(faults) if all(faults) else ""

    return check


def _object(value: object) -> str:
    return "" if isinstance(value, dict) else "an object"


def _objects(most: int) -> Check:
    return _list(_object, most, "objects")


class _Only:
    """The check of a field that the server decides: omitted if it has its default, else refused."""

    def __init__(self, default: object) -> None:
        self._default = default

    def __call__(self, value: object) -> str:
        """Return the description of the default if `value` differs from it, else an empty string."""
        fits = value == self._default
        return "" if fits else "only its default, because meshd decides this: omit the field"


def _logit_bias(value: object) -> str:
    allowed = (
        f"at most {_MOST_BIASED} tokens, or strings of at most {_MOST_BIASED_TEXT} characters, each with a "
        "number from -1000 to 1000 or false: `{TOKEN: BIAS}` or `[[TOKEN, BIAS]]`"
    )
    if isinstance(value, dict):
        pairs: list[object] = [[name, bias] for name, bias in value.items()]
    else:
        pairs = value if isinstance(value, list) else [None]
    if len(pairs) > _MOST_BIASED:
        return allowed
    token, bias = _either(_whole(-1, _INT), _text(_MOST_BIASED_TEXT)), _number(-1000, 1000)
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or token(pair[0]):
            return allowed
        if pair[1] is not False and bias(pair[1]):
            return allowed
    return ""


def _samplers(value: object) -> str:
    """Check a chain of samplers, each of which, even an unknown one, costs time for each token."""
    names: object = list(value) if isinstance(value, str) else value
    same = isinstance(names, list) and all(isinstance(name, str) for name in names)
    known = {str(name).replace("-", "_") for name in names} if same and isinstance(names, list) else set()
    fits = isinstance(names, list) and same and len(known) == len(names) <= _MOST_SAMPLERS
    return "" if fits else f"a list of at most {_MOST_SAMPLERS} names of samplers, without duplicates"


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
        raise _refused(
            "samplers",
            "`infill` may choose a token that a grammar forbids: use it outside chats, and without a grammar",
        )
    top_k = sent.get("top_k", 1)  # llama-server's default is 40
    bounded = isinstance(top_k, int | float) and 1 <= top_k <= _MOST_FILLED
    if "top_k" not in names[: names.index("infill")] or not bounded:
        raise _refused(
            "samplers",
            f"`infill` compares each token with each other: put `top_k` before it, from 1 to {_MOST_FILLED}",
        )


def _grammar(value: object) -> str:
    if not isinstance(value, str):
        return "a string: a grammar in GBNF"
    check_grammar(value)
    return ""


def _is_prompt_object(value: object) -> str:
    is_prompt = isinstance(value, dict) and isinstance(value.get("prompt_string"), str)
    return "" if is_prompt else "`{prompt_string: TEXT}`"


def _tokens(*, texts: bool) -> Check:
    """Return a check of a prompt of tokens, which is fast because it may have a million of them."""
    types = {int, str} if texts else {int}

    def check(value: object) -> str:
        if isinstance(value, list) and len(value) <= _MOST_TOKENS and set(map(type, value)) <= types:
            numbers = [token for token in value if isinstance(token, int)]
            if not numbers or (min(numbers) >= 0 and max(numbers) <= _INT):
                return ""
        return f"a list of at most {_MOST_TOKENS} tokens{' or strings' if texts else ''}"

    return check


_TOKENS = _tokens(texts=False)
_MIXED = _tokens(texts=True)
_PROMPT = _either(_text(), _MIXED, _is_prompt_object)


def _several(check_prompt: Check) -> Check:
    """Return a check of one prompt or a list of them.

    A list with a number in it is one prompt, else each entry is one (tokenize_input_prompts).
    """
    several = _list(check_prompt, _MOST_PROMPTS, "prompts, each a string or a list of tokens", least=1)

    def check(value: object) -> str:
        if isinstance(value, list) and not any(isinstance(part, int) for part in value):
            return several(value)
        return check_prompt(value)

    return check


_STOP = _either(
    _text(_MOST_STOP), _list(_text(_MOST_STOP), _MOST_STOPS, f"strings of at most {_MOST_STOP} characters")
)
_LENGTH = _whole(-1, _INT)
_LOGPROBS = _whole(0, _MOST_PROBABILITIES)

_OUTPUT: Mapping[str, Check] = {
    "model": _any,
    "user": _text(4096),
    "stream": _flag,
    "stream_options": _object,
    "timings_per_token": _flag,
    "cache_prompt": _flag,
    "return_tokens": _flag,
    "return_progress": _flag,
    "sse_ping_interval": _whole(-1, _INT),
    "n_predict": _LENGTH,
    "max_tokens": _LENGTH,
    "max_completion_tokens": _LENGTH,
    "n_indent": _whole(0, 1 << 16),
    "n_keep": _whole(-1, _INT),
    "n_cmpl": _whole(1, _MOST_CHOICES),
    "n": _whole(1, _MOST_CHOICES),
    "t_max_predict_ms": _whole(-1, _LONG),
    "response_fields": _list(_text(256), 64, "names of at most 256 characters"),
    "stop": _STOP,
    "logit_bias": _logit_bias,
    "ignore_eos": _flag,
    "n_probs": _LOGPROBS,
    "post_sampling_probs": _flag,
    # how llama-server runs is not for a client to say
    "n_discard": _Only(0),
    "n_cache_reuse": _Only(0),
    "lora": _Only([]),
}
_SAMPLING: Mapping[str, Check] = {
    "seed": _whole(-(1 << 63), (1 << 64) - 1),
    "samplers": _samplers,
    "min_keep": _whole(0, 1000),
    "top_k": _whole(-1, _INT),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1),
    "typical_p": _number(0, 1),
    "top_n_sigma": _number(-1e30, 1e30),
    "xtc_probability": _number(0, 1),
    "xtc_threshold": _number(0, 1),
    "temperature": _number(0, 100),
    "dynatemp_range": _number(0, 100),
    "dynatemp_exponent": _number(0, 100),
    "repeat_last_n": _whole(0, _MOST_PENALIZED),
    "repeat_penalty": _number(0.01, 100),
    "frequency_penalty": _number(-100, 100),
    "presence_penalty": _number(-100, 100),
    "dry_multiplier": _number(0, 100),
    "dry_base": _number(0, 100),
    "dry_allowed_length": _whole(0, _INT),
    "dry_penalty_last_n": _whole(0, _MOST_PENALIZED),
    "dry_sequence_breakers": _list(_text(64), _MOST_BREAKERS, "strings of at most 64 characters", least=1),
    "mirostat": _whole(0, 2),
    "mirostat_tau": _number(0, 1000),
    "mirostat_eta": _number(0, 1000),
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
    "grammar_lazy": _Only(False),
    "grammar_triggers": _Only([]),
    "preserved_tokens": _Only([]),
    "chat_parser": _Only(""),
    "chat_format": _Only(0),
    "parse_tool_calls": _flag,
}
_REASONING: Mapping[str, Check] = {
    "reasoning_format": _word("none", "auto", "deepseek", "deepseek-legacy"),
    "reasoning_control": _flag,
    "reasoning_budget_tokens": _whole(-1, _INT),
    "thinking_budget_tokens": _whole(-1, _INT),
    "reasoning_budget_message": _text(4096),
    "reasoning_effort": _text(64),
}
_TURNS: Mapping[str, Check] = {
    "tools": _objects(1024),
    "tool_choice": _either(_text(256), _object),
    "parallel_tool_calls": _flag,
    "chat_template_kwargs": _object,
    "add_generation_prompt": _flag,
    "continue_final_message": _either(_flag, _text(64)),
    "response_format": _object,
    "logprobs": _flag,
    "top_logprobs": _LOGPROBS,
    "echo": _flag,
}
_TABLE: Mapping[Endpoint, Mapping[str, Check]] = {
    Endpoint.CHAT: {**_OUTPUT, **_SAMPLING, **_FORMS, **_REASONING, **_TURNS, "messages": _objects(1 << 16)},
    Endpoint.COMPLETION: {
        **_OUTPUT,
        **_SAMPLING,
        **_FORMS,
        "prompt": _several(_PROMPT),
        "logprobs": _LOGPROBS,
        "echo": _Only(False),
        "suffix": _Only(""),
        "best_of": _Only(1),
    },
    Endpoint.INFILL: {
        **_OUTPUT,
        **_SAMPLING,
        **_FORMS,
        "prompt": _text(),
        "input_prefix": _text(),
        "input_suffix": _text(),
        "input_extra": _objects(4096),
        "logprobs": _LOGPROBS,
    },
    Endpoint.EMBEDDINGS: {
        "model": _any,
        "input": _several(_either(_PROMPT, _object)),
        "content": _several(_either(_PROMPT, _object)),
        "encoding_format": _word("float", "base64"),
        "embd_normalize": _whole(-1, 1000),
    },
    Endpoint.RERANK: {
        "model": _any,
        "query": _text(),
        "documents": _list(_text(), _MOST_PROMPTS, "strings", least=1),
        "texts": _list(_text(), _MOST_PROMPTS, "strings", least=1),
        "top_n": _whole(0, _INT),
        "return_text": _flag,
    },
    Endpoint.TOKENIZE: {
        "model": _any,
        "content": _either(_text(), _MIXED),
        "add_special": _flag,
        "parse_special": _flag,
        "with_pieces": _flag,
    },
    Endpoint.DETOKENIZE: {"model": _any, "tokens": _TOKENS},
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
        if isinstance(check, _Only) and not allowed:
            continue
        if allowed:
            raise _refused(name, f"got {_shown(value)}; allowed: {allowed}")
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
    schemas = [*_schemas("json_schema", sent.get("json_schema")), *_schemas("", sent.get("response_format"))]
    found = dict.fromkeys(name for schema in schemas for name in unenforced(schema))
    return tuple(f"{name} in the schema" for name in found)


def _flaw(value: object) -> str:
    """Return the flaw of a value: nested too deeply, or with a number that JSON cannot represent; else ""."""
    level = [value]
    for _ in range(_MOST_DEPTH + 1):
        inner: list[object] = []
        for member in level:
            if not isinstance(member, dict | list):
                if isinstance(member, int | float) and not abs(member) <= sys.float_info.max:
                    return "finite numbers, at most 1.8e308"
                continue
            parts = list(member.values()) if isinstance(member, dict) else member
            # of a long prompt the tokens are left out at once
            if not {int, str, bool}.issuperset(map(type, parts)):
                inner += parts
        if not inner:
            return ""
        level = inner
    return f"lists and objects nested at most {_MOST_DEPTH} deep"


def _check_schemas(sent: Mapping[str, object]) -> None:
    """Check all schemas of a request together, because llama-server makes one grammar of them."""
    budget = SchemaBudget()
    for name in ("json_schema", "response_format", "tools"):
        try:
            for schema in _schemas(name, sent.get(name)):
                budget.check(schema)
        except BeyondBounds as beyond:
            raise _refused(name, str(beyond)) from None


def _schemas(name: str, value: object) -> list[dict[str, object]]:
    """Return the schemas in a field."""
    found: list[object]
    if name == "json_schema":
        found = [value]
    elif isinstance(value, dict):
        wrapped = value.get("json_schema")
        found = [value.get("schema"), wrapped.get("schema") if isinstance(wrapped, dict) else None]
    else:
        functions = [tool.get("function") for tool in objects_of(value)]
        found = [function.get("parameters") for function in functions if isinstance(function, dict)]
    return objects_of(found)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return f"`{text[:60]}{'…' if len(text) > 60 else ''}`"


def _refused(name: str, why: str) -> HttpRefusal:
    return HttpRefusal(Failure(400, f"`{name}`: {why}", code="invalid_value", param=name))


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
    if endpoint not in _WITH_CHOICES:
        return 1
    count = next((asked[name] for name in CHOICE_FIELDS if name in asked), 1)
    return int(count) if isinstance(count, int | float) else 1


def check_number(
    asked: Mapping[str, object], name: str, least: float, most: float, *, whole: bool = False
) -> None:
    """Check an optional number. Raises HttpRefusal."""
    value = asked.get(name)
    if value is None:
        return
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind):
        raise invalid(f"{name}: expected {'a whole number' if whole else 'a number'}", name)
    if not least <= value <= most:
        bound = f"at least {least:g}" if value < least else f"at most {most:g}"
        bound = bound if value == value else "a finite number"
        raise invalid(f"{name}: must be {bound}", name)


def wants_stream(asked: Mapping[str, object]) -> bool:
    """Check `stream` and return it; False if omitted. Raises HttpRefusal."""
    stream = asked.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid("stream: expected true or false", "stream")
    return stream is True
