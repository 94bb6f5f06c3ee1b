"""Bounds of grammars and schemas, counted as llama.cpp walks them."""

import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.dialects.grammar_bounds import BeyondBounds, SchemaBudget, check_grammar, unenforced

JSON_GRAMMAR = r"""
# as grammars/json.gbnf of llama.cpp
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def chain(rules: int, body: str) -> str:
    return "\n".join(
        ["root ::= a0", *(f"a{n} ::= " + body.format(n + 1) for n in range(rules)), f'a{rules} ::= "x"'],
    )


@pytest.mark.parametrize(
    "text",
    [
        JSON_GRAMMAR,
        'root ::= "a"',
        'root ::= ("yes" | "no") [a-z]{2,5} .*',
        'root ::= <think> [^<]* !<[5]>\r\nother-1 ::= "b"',
        chain(500, "a{0}"),
        chain(10, "a{0} | a{0}"),
        'root ::= "' + "a" * 20 + '"{2000}',
        'root ::= ("a"\n{2}{3} | "b"\n) "c"',
    ],
)
def test_real_grammars_pass(text: str) -> None:
    check_grammar(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("root ::= " + "(" * 49 + '"a"' + ")" * 49, "nested more than 48 deep"),
        (chain(4100, "a{0}"), "more than 4096 paths"),
        (chain(2000, "a{0}"), "more than 1000000 steps"),
        (chain(40, "a{0} | a{0}"), "more than 4096 paths"),
        (chain(40, "a{0}? a{0}"), "more than 4096 paths"),
        ('root ::= "x" a{1,2000}\na ::= b?\nb ::= ' + " | ".join(["c"] * 5) + '\nc ::= "d"', "4096 paths"),
        ('root ::= b root "z" | "y"\nb ::= c\nc ::= | "x"', "left recursion"),
        ('root ::= root "a"', "left recursion"),
        ('root ::= a "x"\na ::= "" | root', "left recursion"),
        ('root ::= a root\na ::= | "x"', "left recursion"),
        ('root ::= "a"{2001}', "more than 2000 times"),
        ('root ::= "a"{1,2001}', "more than 2000 times"),
        ('root ::= "a"{' + "9" * 40 + "}", "too many times"),
        ("root ::= " + '"a"{2000} ' * 26, "more than 50000 elements"),
        ('root ::= "' + "a" * 40 + '"{2000}', "more than 50000 elements"),  # each of its letters is copied
        ("root ::= [" + "a" * 40 + "]{2000}", "more than 50000 elements"),
        ('root ::= "' + "a" * 400 + '"{0,600}', "more than 50000 elements"),
        ('root ::= "' + "a" * 100 + '"{20}{30}', "more than 50000 elements"),  # the second copies the first
        ("root ::= " + " | ".join(['"a"'] * 1025), "more than 1024 alternatives"),
        ('root ::= "' + "a" * 66_000 + '"', "longer than 64 KiB"),
        ("root ::= other", "does not define the rule `other`"),
        ('root ::= "a', "not a grammar"),
        ('root ::= ("a"', "unclosed `(`"),
        ('root ::= "a")', "unmatched `)`"),
        ("root ::= *", "nothing precedes `*`"),
        ('"a"', "not a grammar"),
    ],
)
def test_what_would_end_or_stop_llama_server_is_refused(text: str, why: str) -> None:
    with pytest.raises(BeyondBounds, match=re.escape(why)):
        check_grammar(text)


@given(st.text(alphabet='root ab:=|()*+?{},0123456789"[]^\\<>!.\n#-', max_size=60))
def test_any_text_is_a_grammar_or_is_refused(text: str) -> None:
    try:
        check_grammar("root ::= " + text)
    except BeyondBounds as beyond:
        assert str(beyond)


def properties(count: int, one: object) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{n}": one for n in range(count)}}


def chained(count: int, more: object) -> dict[str, object]:
    defs: dict[str, object] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, more]} for n in range(count)
    }
    return {"$defs": {**defs, f"a{count}": {"type": "string"}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        None,
        True,
        properties(256, {"type": "string", "maxLength": 65_535}),
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        chained(20, {"type": "null"}),
        {"type": "string", "pattern": "^[a-z]{1,20}$"},
        {"enum": ["a"] * 1024},
        {"properties": {"p": {"default": {"$ref": 5, "enum": 3, "pattern": 4, "type": {}}}}},
    ],
)
def test_real_schemas_pass(schema: object) -> None:
    SchemaBudget().check(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (properties(257, {}), "257 entries: at most 256"),
        (properties(200, properties(50, {})), "more than 8192 subschemas"),
        (properties(30, {"maxLength": 2000}), "add up to more than 50000"),
        (properties(30, {"pattern": "^a{1,2000}$"}), "add up to more than 50000"),
        ({"pattern": "^" + r"\x41" * 30 + "{2000}$"}, "add up to more than 50000"),  # all its letters repeat
        ({"pattern": "a" * 513}, "513 characters: at most 512"),
        ({"const": ["a" * 25_000] * 2}, "add up to more than 50000"),
        (properties(50, {"enum": ["a" * 1000]}), "add up to more than 50000"),
        ({"enum": ["a"] * 1025}, "1025 entries: at most 1024"),
        ({"anyOf": [{}] * 1025}, "1025 entries: at most 1024"),
        ({"properties": {"x" * 129: {}}}, "129 characters: at most 128"),
        ({"$ref": "#"}, "refers to itself"),
        ({"$ref": "#/" + "a" * 1023}, "1025 characters: at most 1024"),
        (chained(40, {"$ref": "#/$defs/a40"}), ""),
        (chained(70, {"type": "null"}), "lead one to the next"),
    ],
)
def test_schemas_that_take_too_long_are_refused(schema: object, why: str) -> None:
    if not why:
        SchemaBudget().check(schema)
        return
    with pytest.raises(BeyondBounds, match=why):
        SchemaBudget().check(schema)


def test_alternatives_are_counted_once_for_each_way_to_them() -> None:
    defs: dict[str, object] = {f"a{n}": {"oneOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)}
    schema = {"$defs": {**defs, "a30": {"type": "string"}}, "items": {"$ref": "#/$defs/a0"}}
    with pytest.raises(BeyondBounds, match="too many ways"):
        SchemaBudget().check(schema)


def test_what_is_referred_to_is_followed_by_recursion_and_bounded() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(20):
        deep = {"properties": {"x": deep}}
    defs = {f"a{n}": {"properties": {"deep": deep, "x": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(30)}
    with pytest.raises(BeyondBounds, match="refers to too many"):
        SchemaBudget().check({"$defs": defs, "$ref": "#/$defs/a0"})


def test_each_rule_is_looked_at_a_few_times_however_often_it_is_used() -> None:
    began = time.thread_time()  # others use the same processor
    with pytest.raises(BeyondBounds, match="more than 4096 paths"):
        check_grammar("root ::= a\na ::= " + "b " * 9000 + "\nb ::= c " + "c " * 9000 + "\nc ::= \n")
    assert time.thread_time() - began < 1.0


class Walked(list[object]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[object]:
        self.times += 1
        return super().__iter__()


def test_what_several_references_lead_to_is_measured_once() -> None:
    flat = Walked([0] * 10)
    references = [{"$ref": f"a{n}#/x"} for n in range(100)]
    SchemaBudget().check({"x": flat, "anyOf": references})
    assert flat.times <= 2


def merged(references: int, one: object, *, choice: str) -> dict[str, object]:
    listed = [{"$ref": "#/$defs/b"}] * references
    defs = {"a": properties(64, one), "b": {"$ref": "#/$defs/a"}}
    return {"$defs": defs, "allOf": [{choice: listed}] if choice else listed}


@pytest.mark.parametrize("choice", ["", "anyOf", "oneOf"])
def test_properties_that_llama_cpp_merges_are_counted_together(choice: str) -> None:
    SchemaBudget().check(merged(4, {"type": "null"}, choice=choice))
    with pytest.raises(BeyondBounds, match="320 entries: at most 256"):
        SchemaBudget().check(merged(5, {"type": "null"}, choice=choice))


def test_what_is_merged_is_counted_again_for_each_place() -> None:
    """Each level has four times as many copies of the next one."""
    defs: dict[str, object] = {
        f"a{n}": properties(1, {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 4}) for n in range(12)
    }
    with pytest.raises(BeyondBounds, match="more than 8192 subschemas"):
        SchemaBudget().check({"$defs": {**defs, "a12": properties(1, {})}, "$ref": "#/$defs/a0"})


def test_a_merge_that_contains_itself_ends_in_a_refusal() -> None:
    inside = properties(1, {"allOf": [{"$ref": "#/$defs/a"}]})
    with pytest.raises(BeyondBounds, match="nested more than 48 deep"):
        SchemaBudget().check({"$defs": {"a": inside}, "$ref": "#/$defs/a"})
    with pytest.raises(BeyondBounds, match="lead one to the next"):
        SchemaBudget().check({"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]})


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "string", "pattern": r"^\d{3}\w+$"}, ("`pattern` `^\\d{3}\\w+$`",)),
        ({"type": "string", "pattern": "[a-z]{3}"}, ("`pattern` `[a-z]{3}`",)),
        ({"type": "string", "pattern": "^(?=a)b$"}, ("`pattern` `^(?=a)b$`",)),
        ({"type": "string", "pattern": r"^[\w]$"}, ("`pattern` `^[\\w]$`",)),
        ({"type": "string", "pattern": "^a$b$"}, ("`pattern` `^a$b$`",)),
        ({"type": "string", "pattern": r"^(?:[a-z\-]{2,5}|\x41\.b?)+$"}, ()),
        ({"type": "string", "format": "date-time"}, ()),
        ({"type": "string", "format": "email"}, ("`format` `email`",)),
        ({"type": "number", "minimum": 1}, ("`minimum` of a number",)),
        ({"type": "integer", "minimum": 1}, ()),
        ({"if": {}, "then": {}}, ("`if`", "`then`")),
        ({"properties": {"a": {"items": {"anyOf": [{"not": {}}]}}}}, ("`not`",)),
        ({"properties": {"not": {"type": "string"}}}, ()),
        ({"$defs": {"a": {"uniqueItems": True}}, "$ref": "#/$defs/a"}, ("`uniqueItems`",)),
        ({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}, ()),
        (5, ()),
    ],
)
def test_what_no_grammar_holds_is_named(schema: object, names: tuple[str, ...]) -> None:
    assert unenforced(schema) == names
