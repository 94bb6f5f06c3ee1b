"""The chat page: three files of this package, served as they are, with headers that allow nothing else.

It holds nothing secret and needs no key; what it asks of the API does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/chat.css": ("chat.css", "text/css"),
}

# Its own two files and the API, and no other page around it: a text of a model that became HTML by mistake
# could neither run a script nor send anything away.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the files of the version that runs
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content_type: str
    body: bytes

    def response(self, extra: Mapping[str, str]) -> web.Response:
        """The whole file; aiohttp leaves out the body where only the head was asked for."""
        return web.Response(
            body=self.body,
            content_type=self.content_type,
            charset="utf-8",
            headers={**_HEADERS, **extra},
        )


def load_page() -> Mapping[str, PageFile]:
    """The files by path, read once."""
    return {path: PageFile(kind, (_FOLDER / name).read_bytes()) for path, (name, kind) in _FILES.items()}
