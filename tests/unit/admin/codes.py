"""The codes of warnings, read out of the source: a list of them beside it could forget one."""

import ast

from tests.rules.source import last_part, sources


def warning_codes() -> set[str]:
    """Each `HealthWarning(code="…")`."""
    return {
        str(keyword.value.value)
        for source in sources("meshd")
        for call, name in source.calls()
        if last_part(name) == "HealthWarning"
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }
