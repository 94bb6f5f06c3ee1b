"""Bounds for the sources of llama-server's grammars: GBNF text and JSON schemas.

llama-server reads a grammar by recursion, so deep nesting crashes it by a stack overflow. Its check for left
recursion and its list of possible next places walk the same rules once for each path to them, so forty short
rules keep it busy forever. Both are counted here as src/llama-grammar.cpp of the pin walks them. A grammar
within these bounds may still be ambiguous: the paths through it then multiply while it is used, which the
head notices (head/llama_server.py).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

_MOST_GRAMMAR_BYTES = 64 << 10
_MOST_NESTED = 48  # parentheses in parentheses, schemas in schemas
_MOST_ELEMENTS = 50_000  # of all rules, repetitions written out as llama.cpp does
_MOST_ALTERNATIVES = 1024  # of one rule or enum: each may be a possible next place
_MOST_WAYS = 4096  # from one place to the next letters: llama.cpp tries each token on each of them
_MOST_STEPS = 1_000_000  # of the walks from all rules
_MOST_REPEATED = 2000  # as MAX_REPETITION_THRESHOLD of llama-grammar.cpp
_MOST_SCHEMAS = 8192  # of a request, all tools together
_MOST_PROPERTIES = 256  # of one object: llama.cpp copies their list for each of them, again and again
_MOST_CHAINED = 64  # references that each lead to the next one
_MOST_REFERENCED_DEPTH = 1000  # of all that is referred to: llama.cpp follows references by recursion
_MOST_REFERENCE = 1024  # letters
_MOST_NAME = 128  # letters of a property: llama.cpp nests a group for each letter
_MOST_PATTERN = 512  # letters

_TOKEN = re.compile(
    r"(?P<space>[ \t]+|#[^\r\n]*)|(?P<line>\r\n|\r|\n)|(?P<is>::=)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")|(?P<letters>\[(?:[^\]\\]|\\.)*\])|(?P<token>!?<[^<>\s]*>)'
    r"|(?P<name>[A-Za-z0-9-]+)|(?P<repeat>[*+?]|\{[ \t]*\d+[ \t]*(?:,[ \t]*(?:\d+[ \t]*)?)?\})"
    r"|(?P<mark>[()|.])",
    re.DOTALL,
)
_SUB_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SUB_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SUB_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_BRANCHES = ("anyOf", "oneOf", "allOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


# What llama.cpp's converter reads past (common/json-schema.cpp of the pin), so that an answer may break it.
_UNREAD = frozenset(
    {
        *("not", "if", "then", "else", "contains", "multipleOf", "uniqueItems", "propertyNames"),
        *("patternProperties", "dependentSchemas", "dependentRequired", "minProperties", "maxProperties"),
        *("unevaluatedProperties", "unevaluatedItems"),
    }
)
_NUMBER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")  # read of integers only
_FORMATS = re.compile(r"date|time|date-time|uuid[1-5]?")
# A pattern that has a grammar: anchored, and of what _pattern_to_rule reads.
_HEX = r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
_CONVERTIBLE = re.compile(
    rf"\^(?:[^\\()\[\]{{}}^$]|\\(?:[\^$.\[\]()|{{}}*+?trn\\\"-]|{_HEX})|\((?:\?:|(?!\?))|\)"
    rf'|\[(?:[^\]\\]|\\(?:[trn\\"\[\]-]|{_HEX}))*\]|\{{\d*(?:,\d*)?\}})*\$'
)


class BeyondBounds(ValueError):
    """A grammar or schema exceeds a bound, which the text names."""


_TOO_CHAINED = f"more than {_MOST_CHAINED} references (`$ref`) in the schema lead one to the next"


# Alternatives of a rule: of each the rules it refers to, "" for anything that is no rule.
_Rule = list[list[str]]


class _Grammar:
    """The rules of a GBNF text, as llama_grammar_parser makes them. Raises BeyondBounds."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._elements = 0
        self.rules: dict[str, _Rule] = {}
        while self._at < len(self._tokens):
            kind, name = self._tokens[self._at]
            if kind == "line":
                self._at += 1
                continue
            if kind != "name" or self._kind(self._at + 1) != "is":
                raise BeyondBounds(f"it is not a grammar: expected `NAME ::= …`, not `{name[:40]}`")
            self._at += 2
            self.rules[name] = self._alternatives(depth=0)

    def _kind(self, at: int) -> str:
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _add(self, rule: _Rule) -> str:
        name = f"\0{len(self.rules)}"  # no name of the text
        self.rules[name] = rule
        return name

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > _MOST_ELEMENTS:
            what = f"more than {_MOST_ELEMENTS} elements"
            raise BeyondBounds(f"its rules, with repetitions expanded, have {what}")

    def _alternatives(self, *, depth: int) -> _Rule:
        if depth > _MOST_NESTED:
            raise BeyondBounds(f"its parentheses are nested more than {_MOST_NESTED} deep")
        rule: _Rule = [[]]
        last, width = 0, 0  # where the last symbol of the sequence begins, and its elements
        self._skip_lines()
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            sequence = rule[-1]
            # the end of the rule: the end of the line, or the name of the next one
            if kind == "line" and not depth:
                break
            if kind == "name" and self._kind(self._at + 1) == "is":
                break
            self._at += 1
            # operators, then groups, then symbols
            if kind == "repeat":
                width = self._repeat(sequence, last, width, text)
            elif text == "|":
                rule.append([])
                last = 0
                self._skip_lines()
            elif text == ")":
                if not depth:
                    raise BeyondBounds("it is not a grammar: unmatched `)`")
                return rule
            elif text == "(":
                last = len(sequence)
                sequence.append(self._add(self._alternatives(depth=depth + 1)))
                width = 1
            elif kind != "line":
                last = len(sequence)
                sequence.append(text if kind == "name" else "")
                width = max(1, len(text) - 2) if kind in ("text", "letters") else 1
                self._count(width)
            if len(rule) > _MOST_ALTERNATIVES:
                raise BeyondBounds(f"one of its rules has more than {_MOST_ALTERNATIVES} alternatives")
        if depth:
            raise BeyondBounds("it is not a grammar: unclosed `(`")
        return rule

    def _skip_lines(self) -> None:
        while self._kind(self._at) == "line":
            self._at += 1

    def _repeat(self, sequence: list[str], start: int, width: int, text: str) -> int:
        """Expand a repetition of the symbol that begins at `start` and has `width` elements.

        It does what handle_repetitions of the pin does: S S … S'(n), S'(n) ::= S S'(n-1) |. Each S is a copy
        of all its elements: the letters of a text, and the result of an earlier repetition of the symbol.
        Returns the number of elements that the symbol has now.
        """
        if start == len(sequence):
            raise BeyondBounds(f"it is not a grammar: nothing precedes `{text}`")
        least, most = _times(text)
        if least > _MOST_REPEATED or (most is not None and most > _MOST_REPEATED):
            raise BeyondBounds(f"it repeats something more than {_MOST_REPEATED} times: `{text}`")
        optional = 1 if most is None else max(0, most - least)
        self._count(width * least + optional * (width + 2))
        repeated = sequence[start:]
        sequence[start:] = repeated * least
        last = ""
        for number in range(optional):
            rest = [*repeated]
            if most is None:
                rest.append(f"\0{len(self.rules)}")
            elif number:
                rest.append(last)
            last = self._add([rest, []])
        if last:
            sequence.append(last)
        return width * least + bool(last)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise BeyondBounds(f"it is not a grammar at character {at}: `{text[at : at + 20]}`")
        at = found.end()
        if found.lastgroup != "space":
            tokens.append((found.lastgroup, found[0]))
    return tokens


def _times(text: str) -> tuple[int, int | None]:
    if text in ("*", "+", "?"):
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
    least, comma, most = text.strip("{}").partition(",")
    if len(text) > 32:
        raise BeyondBounds("it repeats something too many times")
    low = int(least)
    return low, (int(most) if most.strip() else None) if comma else low


def check_grammar(text: str) -> None:
    """Check a GBNF. Raises BeyondBounds if it would crash llama-server or take it too long."""
    if len(text.encode("utf-8", "replace")) > _MOST_GRAMMAR_BYTES:
        raise BeyondBounds(f"it is longer than {_MOST_GRAMMAR_BYTES >> 10} KiB")
    rules = _Grammar(text).rules
    symbols = (symbol for rule in rules.values() for sequence in rule for symbol in sequence)
    if lacking := next((symbol for symbol in symbols if symbol and symbol not in rules), ""):
        raise BeyondBounds(f"it does not define the rule `{lacking[:40]}`")
    if count_steps(rules) > _MOST_STEPS:
        raise BeyondBounds(f"following all of its rules takes more than {_MOST_STEPS} steps")


def count_steps(rules: Mapping[str, _Rule]) -> int:
    """Count the steps from the beginning of each rule to all letters that may come next.

    Raises BeyondBounds for too many paths from one place, or for left recursion.
    """
    known: dict[str, int] = {}
    empty = _empty_rules(rules)
    order = TopologicalSorter({name: _first(rule, empty) for name, rule in rules.items()})
    try:
        for name in order.static_order():
            known[name] = 1 + sum(_in_sequence(sequence, known, empty) for sequence in rules[name])
    except CycleError as error:
        raise BeyondBounds("one of its rules begins with itself (left recursion)") from error
    return sum(known.values())


def _empty_rules(rules: Mapping[str, _Rule]) -> set[str]:
    """Return the rules that may be empty, also by way of others."""
    # of each sequence the rules in it that are not known to be empty: each is looked at once
    lacking: list[tuple[str, int]] = []
    users: dict[str, list[int]] = {}
    for name, rule in rules.items():
        for sequence in map(set, rule):
            for symbol in sequence:
                users.setdefault(symbol, []).append(len(lacking))
            lacking.append((name, len(sequence)))
    found, pending = set[str](), [name for name, count in lacking if not count]
    while pending:
        if (name := pending.pop()) in found:
            continue
        found.add(name)
        for at in users.get(name, ()):
            user, left = lacking[at]
            lacking[at] = user, left - 1
            if left == 1:
                pending.append(user)
    return found


def _first(rule: _Rule, empty: set[str]) -> set[str]:
    """Return the rules with which this one may begin, including those after an empty rule."""
    first = set()
    for sequence in rule:
        for symbol in sequence:
            first.add(symbol)
            if symbol not in empty:
                break
    return first - {""}


def _in_sequence(sequence: list[str], known: Mapping[str, int], empty: set[str]) -> int:
    """Count the steps from the beginning of a sequence; check the number at each of its places."""
    behind = 1
    for symbol in reversed(sequence):
        # a rule further on may not be known yet: it is counted where it begins
        behind = known.get(symbol, 1) + (behind if symbol in empty else 0)
        if behind > _MOST_WAYS:
            what = f"more than {_MOST_WAYS} paths lead from one point in it to the next character"
            raise BeyondBounds(what)
    return behind


@dataclass(slots=True)
class SchemaBudget:
    """The bounds that all schemas of one request have used so far."""

    schemas: int = 0
    elements: int = 0
    steps: int = 0
    _references: set[str] = field(default_factory=set)  # of the schema that is checked
    _root: Mapping[str, object] = field(default_factory=dict)

    def check(self, schema: object) -> None:
        """Check a JSON schema. Raises BeyondBounds if it would crash llama-server or take it too long."""
        self._references = set()
        self._root = schema if isinstance(schema, dict) else {}
        self._visit(schema, 0)
        if isinstance(schema, dict):
            self._count_references(schema)
            self._count_branches(schema)

    def _count_references(self, root: Mapping[str, object]) -> None:
        depth, known = 0, dict[int, int]()
        for reference in self._references:
            depth += 2 + _depth(_target(root, reference), known)
            if depth > _MOST_REFERENCED_DEPTH:
                raise BeyondBounds(
                    "the schema refers to too many of its parts, or to ones nested too deeply (`$ref`)"
                )

    def _visit(self, schema: object, depth: int) -> None:
        if not isinstance(schema, dict):
            return
        if isinstance(reference := schema.get("$ref"), str):
            self._references.add(reference)
        self.schemas += 1
        if self.schemas > _MOST_SCHEMAS:
            raise BeyondBounds(f"the schemas together have more than {_MOST_SCHEMAS} subschemas")
        if depth > _MOST_NESTED:
            raise BeyondBounds(f"the schema is nested more than {_MOST_NESTED} deep")
        self._check_one(schema)
        for _, inner in _inner_schemas(schema):
            self._visit(inner, depth + 1)
        if isinstance(merged := schema.get("allOf"), list):
            self._visit_merged(merged, depth + 1)

    def _visit_merged(self, listed: list[object], depth: int) -> None:
        """Count as the pin's _visit_all_of does: the properties of all parts in one list, visited again."""
        count = 0
        for child in listed:
            branches = [child]
            if isinstance(child, dict) and "$ref" not in child:
                choices = next((child[name] for name in ("oneOf", "anyOf") if name in child), None)
                branches = choices if isinstance(choices, list) else branches
            for branch in branches:
                part = _followed(self._root, branch)
                properties = part.get("properties") if isinstance(part, dict) else None
                if not isinstance(properties, dict):
                    continue
                count += len(properties)
                _at_most(count, _MOST_PROPERTIES, "the merged `properties` of one `allOf` in the schema")
                if part is not branch:  # else it was visited where it is
                    for inner in properties.values():
                        self._visit(inner, depth + 1)

    def _check_one(self, schema: Mapping[str, object]) -> None:
        pattern, listed = schema.get("pattern"), schema.get("enum")
        if isinstance(pattern, str):
            _at_most(len(pattern), _MOST_PATTERN, "`pattern` in the schema", "characters")
            # a run of escaped letters is one text, which llama.cpp repeats as a whole
            width = 1 + pattern.count("\\")
            for least, most in re.findall(r"\{(\d*),?(\d*)\}", pattern):
                self._repeat(max(int(least[:9] or 0), int(most[:9] or 0)), width)
        if isinstance(listed, list):
            _at_most(len(listed), _MOST_ALTERNATIVES, "`enum` in the schema")
        for name in ("const", "enum"):  # llama.cpp makes an element of each letter of their JSON
            if name in schema:
                self._count(len(json.dumps(schema[name], ensure_ascii=False)))
        for name in _SUB_LISTS:
            if isinstance(parts := schema.get(name), list):
                _at_most(len(parts), _MOST_ALTERNATIVES, f"`{name}` in the schema")
        for name in _SUB_NAMED:
            named = schema.get(name)
            if name == "properties" and isinstance(named, dict):
                _at_most(len(named), _MOST_PROPERTIES, "`properties` of one object in the schema")
            for key in named if isinstance(named, dict) else ():
                _at_most(len(key), _MOST_NAME, f"the name `{key[:40]}` in the schema", "characters")
        for name in _COUNTS:
            if isinstance(count := schema.get(name), int):
                self._repeat(count)
        if isinstance(types := schema.get("type"), list):
            _at_most(len(types), 16, "`type` in the schema")

    def _repeat(self, times: int, width: int = 1) -> None:
        # llama.cpp refuses more than this, which costs nothing
        self._count(times * width if 0 < times <= _MOST_REPEATED else 0)

    def _count(self, elements: int) -> None:
        self.elements += elements
        if self.elements > _MOST_ELEMENTS:
            raise BeyondBounds(
                "the lengths and counts in the schemas, and the characters of `const` and `enum`, "
                f"add up to more than {_MOST_ELEMENTS}"
            )

    def _count_branches(self, root: Mapping[str, object]) -> None:
        """Count alternatives as llama.cpp walks them: once for each path to them."""
        walks: dict[str, int] = {}
        unseen: list[object] = [root]
        while unseen:
            value = unseen.pop()
            if isinstance(value, dict):
                ways = _branches(root, value, walks, frozenset())
                self.steps += ways
                if ways > _MOST_WAYS or self.steps > _MOST_STEPS:
                    raise BeyondBounds(
                        "the alternatives in the schema (`anyOf`, `oneOf`, `allOf`) combine in too many ways"
                    )
                unseen += value.values()
            elif isinstance(value, list):
                unseen += [part for part in value if isinstance(part, dict | list)]


def unenforced(schema: object) -> tuple[str, ...]:
    """Return the demands of a JSON schema that llama.cpp's grammar does not enforce, keywords in backticks.

    The schema must be within the bounds of a SchemaBudget. An answer may break these demands.
    """
    found: dict[str, None] = {}
    pending = [schema]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        if "$ref" not in part:  # beside a reference nothing else is read
            found.update(dict.fromkeys(f"`{name}`" for name in sorted(_UNREAD.intersection(part))))
        pattern, wanted = part.get("pattern"), part.get("format")
        if isinstance(pattern, str) and not _CONVERTIBLE.fullmatch(pattern):
            found[f"`pattern` `{pattern[:40]}`"] = None
        if isinstance(wanted, str) and not _FORMATS.fullmatch(wanted):
            found[f"`format` `{wanted[:40]}`"] = None
        if part.get("type") == "number":
            found.update(dict.fromkeys(f"`{name}` of a number" for name in _NUMBER_BOUNDS if name in part))
        pending += [inner for name, inner in _inner_schemas(part) if name not in _UNREAD]
    return tuple(found)


def _inner_schemas(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield each schema within this one, with the keyword that holds it."""
    for name in _SUB_SCHEMAS:
        yield name, schema.get(name)
    for name in _SUB_LISTS:
        if isinstance(listed := schema.get(name), list):
            yield from ((name, inner) for inner in listed)
    for name in _SUB_NAMED:
        if isinstance(named := schema.get(name), dict):
            yield from ((name, inner) for inner in named.values())


def _branches(
    root: Mapping[str, object], schema: Mapping[str, object], walks: dict[str, int], above: frozenset[str]
) -> int:
    """Return the number of paths into `schema`, through alternatives and references."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in above:
            raise BeyondBounds(f"`{reference[:60]}` in the schema refers to itself")
        if len(above) > _MOST_CHAINED:
            raise BeyondBounds(_TOO_CHAINED)
        if reference not in walks:
            target = _target(root, reference)
            beyond = above | {reference}
            walks[reference] = _branches(root, target, walks, beyond) if isinstance(target, dict) else 1
        return min(_MOST_STEPS + 1, 1 + walks[reference])
    total = 1
    for name in _BRANCHES:
        if isinstance(listed := schema.get(name), list):
            choices = [choice for choice in listed if isinstance(choice, dict)]
            total += sum(_branches(root, choice, walks, above) for choice in choices)
    return min(_MOST_STEPS + 1, total)


def _target(root: Mapping[str, object], reference: str) -> object:
    _at_most(len(reference), _MOST_REFERENCE, f"`{reference[:40]}…` in the schema", "characters")
    found: object = root
    for name in reference.partition("#")[2].split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _followed(root: Mapping[str, object], schema: object) -> object:
    """Follow a schema's references, if any. Raises BeyondBounds for too many in a row."""
    for _ in range(_MOST_CHAINED):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema
        schema = _target(root, reference)
    raise BeyondBounds(_TOO_CHAINED)


def _depth(value: object, known: dict[int, int]) -> int:
    """Return the nesting depth of a parsed JSON value, by recursion, which json.loads has bounded.

    `known`: depths of lists and objects by their `id`, so that each is visited once.
    """
    if not isinstance(value, dict | list):
        return 0
    if (depth := known.get(id(value))) is None:
        inner = value.values() if isinstance(value, dict) else value
        parts = (part for part in inner if isinstance(part, dict | list))
        depth = known[id(value)] = 1 + max((_depth(part, known) for part in parts), default=0)
    return depth


def _at_most(count: int, most: int, what: str, unit: str = "entries") -> None:
    if count > most:
        raise BeyondBounds(f"{what} has {count} {unit}: at most {most}")
