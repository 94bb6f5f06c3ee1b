"""Split a request for several answers into several requests, and join their answers. Pure.

llama-server would queue all prompts of a list before any other user's next request, and report the tokens of
only one of several answers. So each prompt takes its own turn and is counted. Inputs of embeddings and
documents take little time each, and llama-server computes those that arrive together as a batch, so they take
turns in groups.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshd.gateway.dialects.fields import (
    CHOICE_FIELDS,
    Endpoint,
    choices_of,
    encoded,
    is_number,
    objects_of,
    prompts_of,
)

GROUPED = frozenset({Endpoint.EMBEDDINGS, Endpoint.RERANK})
GROUP_INPUTS = 16
GROUP_BYTES = 16 << 10  # of the inputs of one group, if it has several: as long as one usual prompt
_SEEDS = 1 << 32
_SCORES = ("relevance_score", "score")


class PartsError(ValueError):
    """The answer to a part does not have the expected form."""


class _Span(NamedTuple):
    """One prompt or group of a request: the place of its first prompt, and its bytes in the body."""

    first: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The division of a request's body into several: of each prompt all its choices, or groups of prompts.

    A request may wait for long, so only its body is kept. The first `head` bytes have the fields of every
    part, followed by the list called `name`, if any. `seed`: the seed of the first choice.
    """

    endpoint: Endpoint
    name: str
    head: int
    spans: tuple[_Span, ...]
    choices: int
    seed: int | None
    top_n: object

    def __len__(self) -> int:
        return max(1, len(self.spans)) * self.choices

    @property
    def is_grouped(self) -> bool:
        """Return True if llama-server computes the prompts of one part together."""
        return self.endpoint in GROUPED

    def body(self, whole: bytes, number: int) -> bytes:
        """Return the body of part number `number`. `whole`: the body that `split_request` returned."""
        fields = [whole[1 : self.head]] if self.head > 1 else []
        if self.spans:
            _, begin, end = self.spans[number // self.choices]
            value = whole[begin:end]
            fields.append(encoded(self.name) + b":" + (b"[%b]" % value if self.is_grouped else value))
        if self.seed is not None:  # as llama-server does it: else all choices would be the same
            fields.append(b'"seed":%d' % ((self.seed + number % self.choices) % _SEEDS))
        return b"{%b}" % b",".join(fields)


def split_request(asked: Mapping[str, object], endpoint: Endpoint) -> tuple[bytes, Parts | None]:
    """Return the whole body and its parts; None if it has only one. Raises HttpRefusal as `encoded` does."""
    name, prompts = prompts_of(asked, endpoint)
    choices = choices_of(asked, endpoint)
    seed = asked.get("seed")
    first_seed = seed if choices > 1 and is_number(seed) else None
    own = {
        *(CHOICE_FIELDS if choices > 1 else ()),
        "top_n" if prompts else "",
        "seed" if first_seed is not None else "",
    }
    head = encoded({field: value for field, value in asked.items() if field not in {*own, name}})[:-1]
    listed = encoded({name: prompts})[1:-1] if prompts else b""
    # where the first prompt begins: behind a comma, if other fields come before it, and the list's name
    begin = len(head) + (len(head) > 1) + len(encoded(name)) + len(b":[")
    spans = _spans(prompts, begin, grouped=endpoint in GROUPED) if prompts else ()
    parts = Parts(endpoint, name, len(head), spans, choices, first_seed, asked.get("top_n"))
    if len(parts) == 1:
        return encoded(asked), None
    rest = encoded({field: value for field, value in asked.items() if field in own})[1:-1]
    return b"{%b}" % b",".join(filter(None, (head[1:], listed, rest))), parts


def _spans(prompts: list[object], begin: int, *, grouped: bool) -> tuple[_Span, ...]:
    """Return the spans of a list's prompts, or of groups of them; a prompt too long for a group is alone."""
    spans: list[_Span] = []
    room = count = 0
    for at, prompt in enumerate(prompts):
        size = len(encoded(prompt))
        if grouped and spans and size <= room and count < GROUP_INPUTS:
            spans[-1] = spans[-1]._replace(end=begin + size)
        else:
            spans.append(_Span(at, begin, begin + size))
            room, count = GROUP_BYTES, 0
        room, count = room - size, count + 1
        begin += size + 1
    return tuple(spans)


def joined_answer(asked: Parts, answers: Sequence[bytes]) -> object:
    """Join the answers to the parts of a request, given in order. Raises PartsError."""
    try:
        parts: list[object] = [json.loads(answer) for answer in answers]
    except (ValueError, RecursionError) as error:
        raise PartsError("an answer is not JSON") from error
    if asked.endpoint is Endpoint.RERANK:
        return _ranked(asked, parts)
    if all(isinstance(part, dict) for part in parts) and not _is_native(parts):
        return _listed(objects_of(parts), asked.choices)
    flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return [{**item, "index": at} for at, item in enumerate(objects_of(flat))]


def _is_native(parts: Sequence[object]) -> bool:
    return isinstance(parts[0], dict) and not {"choices", "data"} & parts[0].keys()


def _listed(parts: list[dict[str, object]], choices: int) -> dict[str, object]:
    """Join OpenAI's lists. The prompt of several choices is counted once."""
    name = "choices" if "choices" in parts[0] else "data"
    whole = [item for part in parts for item in objects_of(part.get(name))]
    first = {key: value for key, value in parts[0].items() if key != "timings"}  # those of one part
    usages = [usage for part in parts if isinstance(usage := part.get("usage"), dict)]
    return {
        **first,
        name: [{**item, "index": at} for at, item in enumerate(whole)],
        "usage": _usage(usages, choices),
    }


def _usage(usages: Sequence[Mapping[str, object]], choices: int) -> dict[str, object]:
    prompts = usages[::choices]
    usage: dict[str, object] = {"prompt_tokens": _sum(prompts, "prompt_tokens")}
    total = _sum(prompts, "prompt_tokens")
    if any("completion_tokens" in counted for counted in usages):
        usage["completion_tokens"] = _sum(usages, "completion_tokens")
        total += _sum(usages, "completion_tokens")
    usage["total_tokens"] = total
    details = [
        found for counted in prompts if isinstance(found := counted.get("prompt_tokens_details"), dict)
    ]
    if details:
        usage["prompt_tokens_details"] = {"cached_tokens": _sum(details, "cached_tokens")}
    return usage


def _sum(of: Sequence[Mapping[str, object]], name: str) -> int:
    return sum(value for fields in of if is_number(value := fields.get(name)))


def _ranked(asked: Parts, parts: Sequence[object]) -> object:
    """Join rankings as format_response_rerank of the pin writes them, in both forms."""
    found: list[dict[str, object]] = []
    for span, part in zip(asked.spans, parts, strict=True):
        for ranked in objects_of(part.get("results") if isinstance(part, dict) else part):
            within = ranked.get("index")
            found.append({**ranked, "index": span.first + (within if is_number(within) else 0)})
    found.sort(key=_score, reverse=True)
    most = asked.top_n
    found = found[: int(most)] if isinstance(most, int | float) else found
    if not isinstance(parts[0], dict):
        return found
    usages = [usage for fields in objects_of(list(parts)) if isinstance(usage := fields.get("usage"), dict)]
    return {**parts[0], "usage": _usage(usages, 1), "results": found}


def _score(result: Mapping[str, object]) -> float:
    score = next((result[name] for name in _SCORES if name in result), 0.0)
    return score if isinstance(score, int | float) else 0.0
