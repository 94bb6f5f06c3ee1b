"""Which release of llama.cpp the chat page is from, if it was built (see wheels/chat_page.py)."""

import gzip
import json
from pathlib import Path

_BUILT = Path(__file__).parent.parent / "gateway" / "chat" / "build.json.gz"


def page_release(built: Path = _BUILT) -> str | None:
    """Return the release of llama.cpp whose web UI the API serves; None if it serves the small page."""
    try:
        release = json.loads(gzip.decompress(built.read_bytes()))["version"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    return str(release)


def page_words(release: str | None, pinned: str) -> str:
    """Return which page that is, in words. `pinned`: the release that meshd uses."""
    if release is None:
        return "small"
    return f"llama.cpp {release}" + (f", older or newer than {pinned}" if release != pinned else "")
