"""meshd.base.local_way: a connection that two workers of one machine make, and who does not get it."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import local_way
from meshd.base.local_way import (
    NAME_BYTES,
    OFFERED_BYTES,
    SECRET_BYTES,
    LocalOffer,
    come,
    folder_for_sockets,
    offered,
)

from tests.e2e import spaces

OTHER_USER = 65534
linux = pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")


@contextmanager
def ends(end: socket.socket | None) -> Iterator[socket.socket]:
    """Yield an end that blocks."""
    assert end is not None
    with end:
        end.settimeout(10)
        yield end


def is_turned_away(end: socket.socket) -> bool:
    """Tell whether nobody has the other end any more; bytes that were not read there are reset."""
    try:
        return end.recv(100) == b""
    except ConnectionResetError:
        return True


def address(offer: LocalOffer) -> str:
    return f"\0meshd-push-{offer.offered[:NAME_BYTES].hex()}"


def test_who_is_invited_gets_a_connection() -> None:
    with closing(LocalOffer()) as offer:
        assert offer.take() is None
        second = come(offer.offered)
        first = offer.take()
    with ends(first) as here, ends(second) as there:
        here.sendall(b"there")
        assert there.recv(100) == b"there"
        there.sendall(b"back")
        assert here.recv(100) == b"back"


def test_a_wrong_secret_gets_nothing() -> None:
    with closing(LocalOffer()) as offer:
        wrong = offer.offered[:NAME_BYTES] + bytes(SECRET_BYTES)
        rude = come(wrong)
        assert rude is not None, "it cannot know"
        assert offer.take() is None
        with ends(rude) as there:
            assert is_turned_away(there)
        second = come(offer.offered)
        with ends(offer.take()), ends(second):
            pass


@linux
@pytest.mark.parametrize("said", [b"", b"secret", bytes(100)], ids=["silent", "short", "long"])
def test_a_stranger_that_found_the_name_gets_nothing(said: bytes) -> None:
    """Names are listed in /proc/net/unix, for everybody."""
    with closing(LocalOffer()) as offer, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(address(offer))
        stranger.settimeout(10)
        stranger.sendall(said)
        second = come(offer.offered)
        with ends(offer.take()) as here, ends(second) as there:
            here.sendall(b"there")
            assert there.recv(100) == b"there"
        assert is_turned_away(stranger)


@linux
def test_where_strangers_fill_the_place_nobody_waits() -> None:
    with closing(LocalOffer()) as offer:
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(50)]
        for one in strangers:
            one.setblocking(False)
            if one.connect_ex(address(offer)) == errno.EAGAIN:
                break
        else:
            pytest.fail("there is room for all")
        assert come(offer.offered) is None
        assert offer.take() is None
        for one in strangers:
            one.close()


def test_who_comes_again_is_connected_the_last_time_only() -> None:
    with closing(LocalOffer()) as offer:
        early, second = come(offer.offered), come(offer.offered)
        rude = come(offer.offered[:NAME_BYTES] + bytes(SECRET_BYTES))
        first = offer.take()
        with ends(first) as here, ends(second) as there, ends(early) as before, ends(rude) as behind:
            here.sendall(b"there")
            assert there.recv(100) == b"there"
            assert is_turned_away(before) and is_turned_away(behind)


def test_a_stale_name_gets_nothing() -> None:
    with closing(LocalOffer()) as offer:
        late = come(offer.offered)
    with ends(late) as end:
        assert is_turned_away(end), "nobody had taken it"
    assert come(offer.offered) is None


@given(st.binary(max_size=2 * OFFERED_BYTES))
def test_any_other_bytes_lead_nowhere(said: bytes) -> None:
    assert come(said) is None


def test_another_user_is_turned_away_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LocalOffer()) as offer:
        second = come(offer.offered)
        monkeypatch.setattr(local_way, "peer_of", lambda _end: (OTHER_USER, 1))
        assert offer.take() is None
        with ends(second) as there:
            assert is_turned_away(there)
        assert come(offer.offered) is None


COMES = (
    "import os, sys; from meshd.base.local_way import come; "
    "os.setuid(int(sys.argv[2])); print(come(bytes.fromhex(sys.argv[1])) is not None)"
)


def comes(offer: LocalOffer, *prefix: str, user: int | None = None) -> bool:
    """Tell whether another process is connected, as `user`, and run by `prefix`."""
    argv = [
        *prefix,
        sys.executable,
        "-c",
        COMES,
        offer.offered.hex(),
        str(os.getuid() if user is None else user),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@linux
def test_another_process_of_this_user_is_connected() -> None:
    with closing(LocalOffer()) as offer:
        assert comes(offer)
        with ends(offer.take()) as here:
            assert is_turned_away(here), "it has ended meanwhile"


@linux
@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_real_other_user_gets_nothing() -> None:
    with closing(LocalOffer()) as offer:
        assert not comes(offer, user=OTHER_USER)
        assert offer.take() is None


@linux
@pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-")
def test_another_network_namespace_gets_nothing() -> None:
    with closing(LocalOffer()) as offer, spaces.Space() as space:
        assert not comes(offer, *space.prefix)
        assert offer.take() is None


def test_no_offer_where_none_is_wanted_or_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with offered(wanted=False) as offer:
        assert offer is None
    with offered(wanted=True) as offer:
        assert offer is not None and len(offer.offered) == OFFERED_BYTES

    def fails(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(local_way, "socket", fails)
    with offered(wanted=True) as offer:
        assert offer is None
    assert come(bytes(OFFERED_BYTES)) is None


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield one whose path leaves room for a name (sockaddr_un has 104 bytes on macOS)."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        yield Path(folder)


def test_elsewhere_the_name_is_in_a_folder_of_this_user(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        local_way,
        "_address",
        lambda name, *, make: str(folder_for_sockets(short_folder, make=make) / name.hex()),
    )
    with closing(LocalOffer()) as offer:
        (folder,) = short_folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        second = come(offer.offered)
        with ends(offer.take()) as here, ends(second) as there:
            here.sendall(b"there")
            assert there.recv(100) == b"there"
    assert list(folder.iterdir()) == []
    folder.chmod(0o711)
    assert come(offer.offered) is None
    with offered(wanted=True) as none:
        assert none is None
    folder.rmdir()
    folder.symlink_to(short_folder)
    with offered(wanted=True) as none:
        assert none is None
