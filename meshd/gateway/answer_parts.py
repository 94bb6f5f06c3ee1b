"""Split a request for several answers into several requests, and join their answers. Pure.

llama-server would queue all prompts of a list before any other user's next request, and report the tokens of
only one of several answers. So each prompt takes its own turn and is counted. Inputs of embeddings and
documents take little time each, and llama-server computes those that arrive together as a batch, so they take
turns in groups.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.gateway.dialects.fields import (
    CHOICE_FIELDS,
    Endpoint,
    choices_of,
    encoded,
    is_number,
    object_of,
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


@dataclass(frozen=True, slots=True)
class Parts:
    """The division of a request's body into several: of each prompt all its choices, or groups of prompts.

    `common`: the fields of every part, as JSON without braces. `groups`: the values of the field `name`, if
    any, as JSON, each with the place of its first prompt. `seed`: the seed of the first choice.
    """

    endpoint: Endpoint
    common: bytes
    name: str
    groups: tuple[tuple[int, bytes], ...]
    choices: int
    seed: int | None
    top_n: object

    def __len__(self) -> int:
        return max(1, len(self.groups)) * self.choices

    @property
    def is_grouped(self) -> bool:
        """Return True if llama-server computes the prompts of one part together."""
        return self.endpoint in GROUPED

    def body(self, number: int) -> bytes:
        """Return the body of part number `number`."""
        fields = [self.common] if self.common else []
        if self.groups:
            fields.append(encoded(self.name) + b":" + self.groups[number // self.choices][1])
        if self.seed is not None:  # as llama-server does it: else all choices would be the same
            fields.append(b'"seed":%d' % ((self.seed + number % self.choices) % _SEEDS))
        return b"{%b}" % b",".join(fields)


def split_request(asked: Mapping[str, object], endpoint: Endpoint) -> Parts | None:
    """Return the parts of a request; None if it has only one."""
    name, prompts = prompts_of(asked, endpoint)
    choices, seed = choices_of(asked, endpoint), asked.get("seed")
    first_seed = seed if choices > 1 and is_number(seed) else None
    own = {name, "top_n"} if prompts else set()
    own |= {*CHOICE_FIELDS} if choices > 1 else set()
    own |= {"seed"} if first_seed is not None else set()
    common = encoded({field: value for field, value in asked.items() if field not in own})[1:-1]
    groups = _groups(prompts, are_grouped=endpoint in GROUPED)
    parts = Parts(endpoint, common, name, groups, choices, first_seed, asked.get("top_n"))
    return parts if len(parts) > 1 else None


def _groups(prompts: list[object], *, are_grouped: bool) -> tuple[tuple[int, bytes], ...]:
    """Return the prompts of a list, or groups of them; a prompt too long for a group is alone."""
    groups: list[tuple[int, list[bytes]]] = []
    room = 0
    for at, value in enumerate(map(encoded, prompts)):
        if are_grouped and groups and len(value) <= room and len(groups[-1][1]) < GROUP_INPUTS:
            groups[-1][1].append(value)
        else:
            groups.append((at, [value]))
            room = GROUP_BYTES
        room -= len(value)
    return tuple((first, b"[%b]" % b",".join(of) if are_grouped else of[0]) for first, of in groups)


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
    counts = {"prompt_tokens": _sum(prompts, "prompt_tokens")}
    if any("completion_tokens" in counted for counted in usages):
        counts["completion_tokens"] = _sum(usages, "completion_tokens")
    usage: dict[str, object] = {**counts, "total_tokens": sum(counts.values())}
    if details := [found for counted in prompts if (found := object_of(counted, "prompt_tokens_details"))]:
        usage["prompt_tokens_details"] = {"cached_tokens": _sum(details, "cached_tokens")}
    return usage


def _sum(of: Sequence[Mapping[str, object]], name: str) -> int:
    return sum(value for fields in of if is_number(value := fields.get(name)))


def _ranked(asked: Parts, parts: Sequence[object]) -> object:
    """Join rankings as format_response_rerank of the pin writes them, in both forms."""
    found: list[dict[str, object]] = []
    for (first, _), part in zip(asked.groups, parts, strict=True):
        for ranked in objects_of(part.get("results") if isinstance(part, dict) else part):
            within = ranked.get("index")
            found.append({**ranked, "index": first + (within if is_number(within) else 0)})
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
