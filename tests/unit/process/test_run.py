"""The environment a child gets."""

import os
from unittest import mock

from meshd.process.run import environment

OURS = {
    "PATH": "/bin",
    "HOME": "/home/a",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "1",
    "MESHD_TOKEN": "secret",
    "OPENAI_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "LD_PRELOAD": "/tmp/x.so",
    "LLAMA_ARG_HOST": "0.0.0.0",
}


def test_only_what_a_child_needs_is_kept() -> None:
    with mock.patch.dict(os.environ, OURS, clear=True):
        found = environment({})
    assert set(found) == {"PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES"}


def test_what_is_added_wins() -> None:
    with mock.patch.dict(os.environ, OURS, clear=True):
        found = environment({"HOME": "/elsewhere", "LLAMA_ARG_HOST": "::1"})
    assert found["HOME"] == "/elsewhere"
    assert found["LLAMA_ARG_HOST"] == "::1"


def test_there_is_always_a_path() -> None:
    with mock.patch.dict(os.environ, clear=True):
        assert environment({})["PATH"]
