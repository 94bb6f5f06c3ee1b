"""The page at `/`: llama.cpp's web UI if it was built, else a small one of our own; the page at `/mesh`; and
their headers.

`make chat` builds them into the folders `chat` and `mesh` beside this module: compressed files, and an index
of them. Nothing outside the index is served, no path of a request becomes a path of a file, and a file is
read when somebody asks for it, so that a node without a browser holds none of them.

No page may be framed, send a form, or load anything from another host. A text of a model that became HTML
by mistake could neither run a script nor send anything away.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from meshd.base.log import get
from meshd.base.tasks import in_thread
from meshd.gateway.failure import ANSWER_HEADERS

CHAT_FOLDER = Path(__file__).parent / "chat"
MESH_FOLDER = Path(__file__).parent / "mesh"
INDEX_NAME = "index.json"
_SMALL_FOLDER = Path(__file__).parent / "page"
_SMALL_FILES = {
    "/": ("index.html", "text/html"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/chat.css": ("chat.css", "text/css"),
}

_SAME_FOR_ALL = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SMALL_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " + _SAME_FOR_ALL
)
# Formulas and diagrams set styles at their elements; pictures, sound and PDFs that the user attached are data
# of the page, and PDFs are read by a worker made of such data. `{scripts}`: hashes of those within the HTML.
_CHAT_POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self'; worker-src blob:; "
    + _SAME_FOR_ALL
)
MESH_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; " + _SAME_FOR_ALL
)
_REVALIDATED = "no-cache"  # the files of the version that runs
_KEPT = "public, max-age=31536000, immutable"  # their names have a hash of their content
_REMOTE_PATH = "/mesh/remote.html"
_KEPT_BELOW = ("/_app/immutable/", "/mesh/assets/")

QUIET_HEADER = "X-Meshd-Quiet"  # of a GET of the page, which waits for the model
STATUS_HEADER = "X-Meshd-Status"

_log = get("gateway")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of a page, which needs no key; the page's requests to the API do.

    `place`: where it is; compressed if `is_gzip`. `tag`: its ETag. `policy`: what the page may do.
    """

    place: Path
    content_type: str
    tag: str
    policy: str
    is_gzip: bool = False
    is_kept: bool = False

    async def response(self, asked: Mapping[str, str], extra: Mapping[str, str]) -> web.Response:
        """Return the file for a request with the headers `asked`; aiohttp omits the body for HEAD."""
        headers = {
            "Content-Security-Policy": self.policy,
            "Referrer-Policy": "no-referrer",
            "Cache-Control": _KEPT if self.is_kept else _REVALIDATED,
            "ETag": self.tag,
            **({"Vary": "Accept-Encoding"} if self.is_gzip else {}),
            **extra,
        }
        if self.tag in asked.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = await in_thread(self.place.read_bytes)
        if self.is_gzip and "gzip" in asked.get("Accept-Encoding", "").lower():
            headers["Content-Encoding"] = "gzip"
        elif self.is_gzip:
            body = await in_thread(gzip.decompress, body)
        is_text = self.content_type.startswith("text/")
        charset = "utf-8" if is_text else None
        return web.Response(body=body, content_type=self.content_type, charset=charset, headers=headers)

    def plain_response(self) -> bytes:
        """Return an answer of HTTP/1.1 that ends its connection, for a port without a web server. It blocks.

        Browsers keep it for a week: a page that was opened in the node's network works elsewhere, too.
        """
        body = self.place.read_bytes()
        headers = {
            **ANSWER_HEADERS,
            "Content-Type": f"{self.content_type}; charset=utf-8",
            **({"Content-Encoding": "gzip"} if self.is_gzip else {}),
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.policy,
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "private, max-age=604800",
            "Connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


Page = Mapping[str, PageFile]
"""The files of a page by the paths of their requests."""


def load_page(folder: Path = CHAT_FOLDER) -> Page:
    """Return llama.cpp's web UI if it is in `folder`, else the small page."""
    return chat_page(folder) or small_page()


def small_page() -> Page:
    """Return the page that needs no build."""
    return {path: _small_file(name, kind) for path, (name, kind) in _SMALL_FILES.items()}


def _small_file(name: str, kind: str) -> PageFile:
    place = _SMALL_FOLDER / name
    return PageFile(place, kind, _tag(hashlib.sha256(place.read_bytes()).hexdigest()), _SMALL_POLICY)


def chat_page(folder: Path) -> Page | None:
    """Return the chat page that was built into `folder`; None if there is none."""
    return _built_page(folder, _CHAT_POLICY)


def mesh_page(folder: Path = MESH_FOLDER) -> Page | None:
    """Return the page of the mesh that was built into `folder`; None if there is none."""
    return _built_page(folder, MESH_POLICY)


def remote_page(folder: Path = MESH_FOLDER) -> PageFile | None:
    """Return the page for browsers elsewhere; None if it was not built."""
    return (mesh_page(folder) or {}).get(_REMOTE_PATH)


def _built_page(folder: Path, policy: str) -> Page | None:
    """Read the index in `folder`. `policy`: with `{scripts}` where the hashes of scripts in the HTML go.

    A file within the index may have a policy of its own.
    """
    index = folder / INDEX_NAME
    try:
        read = json.loads(index.read_bytes())
        policy = policy.format(scripts=" ".join(f"'{digest}'" for digest in read["scripts"]))
        return {
            path: PageFile(
                place=folder / file["name"],
                content_type=file["type"],
                tag=_tag(file["sha256"]),
                policy=f"{file['policy']}; frame-ancestors 'none'" if "policy" in file else policy,
                is_gzip=file["gzip"],
                is_kept=path.startswith(_KEPT_BELOW),
            )
            for path, file in read["files"].items()
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("page_unreadable", path=str(index), why=repr(error))
        return None


def make_quiet(refusal: web.Response) -> None:
    """Make a refusal an answer that a browser does not count as an error; its status becomes a header."""
    refusal.headers[STATUS_HEADER] = str(refusal.status)
    refusal.headers["Cache-Control"] = "no-store"
    refusal.set_status(200)


def _tag(digest: str) -> str:
    return f'"{digest[:32]}"'
