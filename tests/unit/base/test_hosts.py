"""Which hosts only this machine reaches."""

import pytest
from meshd.base.hosts import is_loopback


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::1%lo", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("x", False),
        ("", False),
    ],
)
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
