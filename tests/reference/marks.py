"""Generated parts of a page, each between `<!-- NAME -->` and `<!-- end of NAME -->`."""

import re
from collections.abc import Mapping


def with_parts(page: str, parts: Mapping[str, str]) -> str:
    """The page with these parts as they are now. Raises ValueError when marks are missing, or left over."""
    marked = set(re.findall(r"^<!-- end of (.*) -->$", page, re.MULTILINE))
    for name in sorted(marked - set(parts)):
        raise ValueError(f"the page has marks for `{name}`, which is not made any more")
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        found = re.compile(f"^{re.escape(begin)}$.*?^{re.escape(end)}$", re.MULTILINE | re.DOTALL)
        made = f"{begin}\n\n{text}\n\n{end}"  # Markdown wants an empty line before a table or indented code
        page, count = found.subn(made.replace("\\", r"\\"), page)
        if count != 1:
            raise ValueError(f"the page needs the line `{begin}` once, and `{end}` below it")
    return page
