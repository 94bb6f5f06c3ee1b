"""Functions of C++ source, found in its text: in the style of native/, without its macros."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANKED = re.compile(
    r"""//[^\n]* | /\*.*?\*/                                                    # comments
    | R"\(.*?\)" | "(?:\\.|[^"\\\n])*" | (?<!\w)'(?:\\.|[^'\\\n])+'           # texts
    | ^[ \t]*\#(?:\\\n|[^\n])*                                                 # for the preprocessor""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
# before a brace: the end of a signature, of an initializer list, and a scope that has functions in it
_SIGNATURE = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|&|\s)*(?:->[^{};=]+)?$")
_INITIALIZERS = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)")
_SCOPE = re.compile(r"^(?:inline\s+)?namespace\b|^extern\s*$|^(?:class|struct|union)\b[^()=]*$")
_ACCESS = re.compile(r"\b(?:public|private|protected):")


@dataclass(frozen=True, slots=True)
class Function:
    """`lines`: from that of its opening brace to that of the last one."""

    signature: str
    lines: int


def functions(text: str) -> Iterator[Function]:
    """Return the functions of a file and of its classes; lambdas and classes within one count to it."""
    text = _BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    begin = at = 0  # `begin`: behind what was complete before
    while (found := re.compile(r"[;{}]").search(text, at)) is not None:
        at = found.end()
        if found[0] != "{":
            begin = at
            continue
        head = _without_template(_ACCESS.sub("", text[begin : found.start()]).strip())
        if _SCOPE.search(head):
            begin = at
            continue
        end = _closed(text, at)
        if _is_function(head):
            yield Function(" ".join(head.split()), text.count("\n", at, end))
        if _is_function(head) or not _goes_on(head):
            begin = end
        at = end


def _is_function(head: str) -> bool:
    if head.count("(") != head.count(")") or "=" in _outside(head):
        return False
    if _INITIALIZERS.search(head):
        return re.search(r"[)}]$", head) is not None
    return _SIGNATURE.search(head) is not None


def _goes_on(head: str) -> bool:
    """The brace belongs to a value in the middle of something: of a parameter, a member, a variable."""
    is_open = head.count("(") != head.count(")")
    return is_open or "=" in _outside(head) or _INITIALIZERS.search(head) is not None


def _outside(head: str) -> str:
    """Without round brackets, in which parameters have values, and without the names of operators."""
    while "(" in head:
        head, before = re.sub(r"\([^()]*\)", "", head), head
        if head == before:
            break
    return re.sub(r"\boperator\s*\S+", "", head)


def _without_template(head: str) -> str:
    """Its parameters may have values, too."""
    depth = 0
    for found in re.compile(r"[<>]").finditer(head) if head.startswith("template") else ():
        depth += 1 if found[0] == "<" else -1
        if depth == 0:
            return _without_template(head[found.end() :].lstrip())
    return head


def _closed(text: str, at: int) -> int:
    """Behind the brace that closes the one before `at`."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.end()
    return len(text)
