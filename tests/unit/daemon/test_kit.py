"""What the roles get: who may use a tunnel without a secret, and whose the model's socket is."""

import asyncio
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.base import log
from meshd.daemon import kit

HERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "meshd.log"
    log.set_up(file=file)
    kit._warn_owner_unknown.cache_clear()
    yield file
    log.set_up(level="warning")


@pytest.mark.parametrize(("told", "taken"), [(True, True), (False, False), (None, True)])
def test_a_system_that_does_not_tell_is_named_once(
    logged: Path, monkeypatch: pytest.MonkeyPatch, told: bool | None, taken: bool
) -> None:
    monkeypatch.setattr(kit, "owns_connection", lambda _pid, _client, _server: told)
    for _ in range(2):
        is_ours = kit._owned_by(lambda: 1)
        assert [is_ours(*HERE) for _ in range(3)] == [taken] * 3
    text = logged.read_text() if logged.exists() else ""
    assert text.count("tunnel_owner_unknown") == (told is None)


def test_without_a_child_no_connection_is_its_own() -> None:
    assert not kit._owned_by(lambda: None)(*HERE)


def test_the_models_socket_is_closed_to_others() -> None:
    async def ready(place: Path) -> bool:
        return await kit._answers(place)()

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        place = Path(folder) / "s"
        assert asyncio.run(ready(place)) is False
        server.bind(str(place))
        place.chmod(0o755)
        assert asyncio.run(ready(place)) is False
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
