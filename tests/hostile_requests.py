"""Values that have ended llama-server, or might, drawn for each field of the gateway's table."""

import random
from collections.abc import Callable

from meshd.gateway.dialects.fields import Endpoint, fields_of

_MOST = 1 << 31
_NUMBERS: tuple[object, ...] = (
    *(0, -1, 1, -2, 2, _MOST - 1, _MOST, -_MOST, (1 << 63) - 1, 1 << 64, 10**400, 49152, 0.5),
    *(1e-45, 1e-38, 1e-30, 1e38, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), -0.0, 100, 1000),
    *(20, 64, 131072, 0.01, 0.99, 1.0, -100, 1e30, -1e30),
)
_TEXTS: tuple[object, ...] = ("", "a", "\0", "\\", "é\u200b", "x" * 5000, "(" * 500, "[[" * 200, "tool_calls")


def _deep(count: int) -> object:
    value: object = 1
    for _ in range(count):
        value = {"a": [value]}
    return value


_SIMPLE: tuple[object, ...] = (None, True, False, *_NUMBERS, *_TEXTS)
_ODD: tuple[object, ...] = (
    [],
    {},
    [[]],
    [None],
    [-1],
    [5000000],
    ["a"] * 3000,
    {"a": 1},
    _deep(20),
    _deep(200),
)


def _chained(rules: int, body: str) -> str:
    lines = [f"a{n} ::= {body.format(n + 1)}" for n in range(rules)]
    return "\n".join(["root ::= a0", *lines, f'a{rules} ::= "x"'])


GRAMMARS = (
    'root ::= "a"',
    'root ::= "yes" | "no"',
    "root ::= [a-z ]{1,2000}",
    "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
    "root ::= " + "(" * 48 + '"a"' + ")" * 48,
    _chained(20_000, "a{0}"),
    _chained(900, "a{0}"),
    _chained(60, "a{0} | a{0}"),
    _chained(10, "a{0} | a{0}"),
    'root ::= root "a"',
    'root ::= b root "z" | "y"\nb ::= c\nc ::= | "x"',
    'root ::= ("a"{1,2000}){1,2000}',
    "root ::= " + " ".join(['"a"{0,2000}'] * 8),
    'root ::= "a"{999999999999999999999}',
    'root ::= "' + "a" * 47_000 + '"{2000}',
    "root ::= [" + "a" * 47_000 + "]{0,600}",
    'root ::= "' + "a" * 24 + '"{2000}',
    'root ::= "' + "a" * 400 + '"{10}{12}',
    'root ::= ((("a"?)*)*)*',
    "root ::= " + " | ".join(f'"{n} a"' for n in range(1000)),
    'root ::= "unended',
    "root ::= [",
    "root ::= [^]",
    "root ::= <[99999999]>",
    "root ::= <[5]> !<[6]>",
    "root ::= <[-1]>",
    'root ::= "\\x00"',
    'root ::= "\\U00110000"',
    'root ::= ""',
    "root ::= ",
    'other ::= "a"',
    'root ::= "\u00e9\U0001f600" [\u4e00-\u9fff]+',
)
SCHEMAS: tuple[object, ...] = (
    {},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(200)}},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/x"},
    {"$ref": "#/no/such"},
    {"type": "string", "pattern": "^" + "(" * 90 + "a" + ")" * 90 + "$"},
    {"type": "string", "pattern": "^(a{1,2000}){1,2000}$"},
    {"type": "string", "pattern": "^" + "\\x41" * 120 + "{1,2000}$"},
    {"type": "string", "pattern": "^[" + "a" * 400},
    {"type": "string", "minLength": 2000, "maxLength": 2000},
    {"type": "string", "minLength": -5, "maxLength": 10**30},
    {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
    {"type": "array", "items": {"type": "array", "items": {"enum": list(range(900))}, "minItems": 2000}},
    {"properties": {"x" * 4000: {}}},
    {"properties": {"x" * 128: {}}, "additionalProperties": True},
    {"type": ["string", "null", "bogus"]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"const": _deep(10)},
    {"format": "uuid", "type": "string"},
    {
        "$defs": {
            **{f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)},
            "a60": {"type": "string"},
        },
        "$ref": "#/$defs/a0",
    },
    {
        "$defs": {
            **{f"a{n}": {"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(300)},
            "a300": {"type": "string"},
        },
        "$ref": "#/$defs/a0",
    },
)


def _biases(rng: random.Random) -> object:
    biases = (*_NUMBERS, False, -1000, 1000)
    if rng.random() < 0.5:
        names = ["0", "1", "-5", "99999999", "a", "x" * 60, "\0"]
        return {name: rng.choice(biases) for name in rng.sample(names, rng.randrange(len(names)))}
    bans = rng.random() < 0.5
    return [
        [rng.randrange(-2, 60_000), False if bans else rng.choice(biases)]
        for _ in range(rng.choice([1, 1000]))
    ]


def _samplers(rng: random.Random) -> object:
    names = [
        "infill",
        "dry",
        "top_k",
        "xtc",
        "adaptive_p",
        "no_such",
        "min_p",
        "penalties",
        "typ_p",
        "temperature",
    ]
    return rng.sample(names, rng.randrange(len(names))) * rng.choice([1, 1, 1, 50])


_OWN: dict[str, Callable[[random.Random], object]] = {
    "grammar": lambda rng: rng.choice(GRAMMARS),
    "json_schema": lambda rng: rng.choice(SCHEMAS),
    "response_format": lambda rng: {"type": "json_schema", "json_schema": {"schema": rng.choice(SCHEMAS)}},
    "logit_bias": _biases,
    "tools": lambda rng: [{"type": "function", "function": {"name": "f", "parameters": rng.choice(SCHEMAS)}}],
    "samplers": _samplers,
    "grammar_triggers": lambda rng: [
        {"type": rng.choice([99, -1, 2]), "value": "(" * 3000 + "a" + ")*" * 3000}
    ],
    "chat_parser": lambda rng: rng.choice(
        ["", '{"root": 0, "parsers": [{"type": "ref", "name": "x"}]}', "x"]
    ),
    "lora": lambda _rng: [{"id": -5, "scale": 1e38}],
    "prompt": lambda rng: rng.choice(
        ["a", [1, 2, 3], [5_000_000], ["a"] * 20, [[1], "b"], "x " * 3000, "", []]
    ),
    "tokens": lambda rng: [rng.choice([0, 1, 49151, 49152, 5_000_000, _MOST - 1, -1]) for _ in range(5)],
    "content": lambda rng: rng.choice(["a", "x " * 20_000, [1, "a"], [5_000_000], {}]),
}


def hostile_fields(rng: random.Random, endpoint: Endpoint) -> dict[str, object]:
    """Return one to four fields of this endpoint's table with values of all kinds."""
    names = sorted(fields_of(endpoint))
    return {
        name: hostile_value(rng, name) for name in rng.sample(names, min(len(names), rng.randrange(1, 5)))
    }


def hostile_value(rng: random.Random, name: str) -> object:
    """Return a value for a field of this name, made for it or any."""
    draw = _OWN.get(name)
    if draw is not None and rng.random() < 0.8:
        return draw(rng)
    return any_value(rng)


def any_value(rng: random.Random) -> object:
    """Return a value that any field may be sent with."""
    return rng.choice(_SIMPLE if rng.random() < 0.8 else _ODD)
