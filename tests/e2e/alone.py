"""Return what one machine by itself answers: the text that every split must repeat, token for token."""

from pathlib import Path

from tests.e2e.models import stock_text
from tests.e2e.nodes import PROMPT, THREADS


def alone(model: Path, tokens: int, prompt: str = PROMPT) -> str:
    """Greedy text of upstream's llama-server, which has no mesh.

    Not repacked, threads and batch as in the tests.
    """
    return stock_text(model, tokens, prompt, ("-c", "8192", "-t", str(THREADS)))
