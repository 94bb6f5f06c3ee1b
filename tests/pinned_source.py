"""Files of the pinned llama.cpp, for lists that must say the same as its source."""

import os

import pytest
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.config.tree import find_cache


def pinned_source(name: str) -> str:
    """A file's text, from a tree that a build left in the cache; without one the test is skipped."""
    for folder in (find_cache(os.environ) / "native").glob("upstream-*"):
        if Tree(folder).holds(read_pin().commit):
            return (folder / "src" / name).read_text(encoding="utf-8")
    pytest.skip("the cache has no source of the pinned llama.cpp (`meshd native build` leaves one)")
