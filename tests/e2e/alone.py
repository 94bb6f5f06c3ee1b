"""What one machine by itself answers: the text that every split must repeat, token for token."""

import tempfile
from functools import cache
from pathlib import Path

from meshd.build.interface import LLAMA_SERVER

from tests.e2e.models import patched
from tests.e2e.native_rig import Head
from tests.e2e.nodes import PROMPT, THREADS


@cache
def alone(model: Path, tokens: int, prompt: str = PROMPT) -> str:
    """Greedy text of one llama-server without meshd: not repacked, threads and batch as in the tests."""
    extra = ["-c", "8192", "-t", str(THREADS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Head(patched().binaries[LLAMA_SERVER], Path(folder), model, [], extra=extra) as head,
    ):
        return head.complete(prompt, tokens)
