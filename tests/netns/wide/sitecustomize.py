"""Python runs this first in a node whose PYTHONPATH names this folder: its windows never hold anything back.

So what is counted are messages that wait for one another, and not the growth of a window: how much fits into
one depends on how fast the machine answers.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

WIDE_BYTES = 64 << 20


def wide_pacing(module: ModuleType) -> None:
    """Let links carry this much at once."""
    for constant in ("FIRST_ALLOWANCE", "_QUEUE_LEAST", "_QUEUE_MOST"):
        assert getattr(module, constant) < WIDE_BYTES
        setattr(module, constant, WIDE_BYTES)


def wide_windows(module: ModuleType) -> None:
    """Let streams and sessions hold this much: the first three fields, whose defaults `__init__` has."""
    config = module.MuxConfig
    assert list(config.__annotations__)[:3] == ["stream_window", "max_stream_window", "session_window"]
    config.__init__.__defaults__ = (WIDE_BYTES,) * 3 + config.__init__.__defaults__[3:]


WIDENED: dict[str, Callable[[ModuleType], None]] = {
    "meshd.mux.pacing": wide_pacing,
    "meshd.mux.config": wide_windows,
}


class _Widening(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the modules above as they are, and widens them."""

    def __init__(self) -> None:
        self._loaders: dict[str, importlib.abc.Loader] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WIDENED:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None and found.loader is not None
        self._loaders[name] = found.loader
        found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._loaders[module.__name__].exec_module(module)
        WIDENED[module.__name__](module)


sys.meta_path.insert(0, _Widening())
