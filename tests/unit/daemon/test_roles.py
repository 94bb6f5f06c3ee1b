"""The roles stand in one table, and nothing else tells one from another by its name."""

import ast

from meshd.cli.main import VERBS
from meshd.daemon.roles import ROLES

from tests.rules.source import Source, sources


def compared(source: Source) -> list[str]:
    """Names of roles that something is compared with."""
    return [
        f"{source.path}:{node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in ROLES
    ]


def test_every_role_has_a_verb() -> None:
    assert set(ROLES) <= {verb.name for verb in VERBS}


def test_no_name_of_a_role_is_compared_with() -> None:
    asked = Source.of("x.py", 'if role == "serve" or role in ("worker", "x"): pass\nroles = {"worker": 1}')
    assert compared(asked) == ["x.py:1", "x.py:1"]
    found = [place for source in sources("meshd") for place in compared(source)]
    assert found == []
