"""Key files and keys."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.gateway.api_key import ApiKey
from meshd.gateway.auth import KeyRing, load_keys
from meshd.gateway.interface import GatewayConfig

KEYS = st.text([chr(code) for code in range(0x21, 0x7F)], min_size=8, max_size=60)


def key_file(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_keys_are_read_line_by_line(tmp_path: Path) -> None:
    text = "# for the desk\nsk-desk-1234\n\n   # indented\r\n  sk-laptop-1234  \r\nsk#inside-5678"
    keys = load_keys(key_file(tmp_path, text))
    assert [key.secret for key in keys] == ["sk-desk-1234", "sk-laptop-1234", "sk#inside-5678"]
    assert [key.name for key in keys] == ["key-1", "key-2", "key-3"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o777])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, "sk-12345678", mode)
    with pytest.raises(UserError) as caught:
        load_keys(path)
    assert f"{mode:04o}" in caught.value.what
    assert caught.value.hint == f"run `chmod 600 {path}`"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_passes(tmp_path: Path, mode: int) -> None:
    assert load_keys(key_file(tmp_path, "sk-12345678", mode)) == (ApiKey("sk-12345678"),)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "sk-12345678")
    os.chown(path, 12345, -1)
    with pytest.raises(UserError, match="another user"):
        load_keys(path)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="contains no key"):
        load_keys(key_file(tmp_path, text))


@pytest.mark.parametrize("bad", ["two words-123", "short", "sk-1234567é", "sk-1234\x01567"])
def test_a_bad_line_is_named_without_its_text(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UserError) as caught:
        load_keys(key_file(tmp_path, f"sk-12345678\n{bad}\n"))
    assert "line 2" in caught.value.what
    assert bad not in caught.value.what + caught.value.hint


def test_what_is_no_key_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path, why in (
        (tmp_path / "absent", "no such file"),
        (tmp_path, "not a regular file"),
        (fifo, "not a regular file"),
    ):
        with pytest.raises(UserError, match=why):
            load_keys(path)
    with pytest.raises(UserError, match="not text"):
        load_keys(key_file(tmp_path, b"\xff\xfe"))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        load_keys(key_file(tmp_path, b"a" * ((1 << 20) + 1)))


@given(st.lists(KEYS, min_size=1, max_size=4, unique=True), st.data())
def test_exactly_the_keys_open(keys: list[str], draw: st.DataObject) -> None:
    ring = KeyRing([ApiKey(key) for key in keys])
    key = draw.draw(st.sampled_from(keys))
    assert ring.match({"Authorization": f"Bearer {key}"}) is not None
    assert ring.match({"X-Api-Key": key}) is not None
    other = draw.draw(KEYS.filter(lambda text: text not in keys))
    assert ring.match({"Authorization": f"Bearer {other}"}) is None
    assert ring.match({"X-Api-Key": other}) is None
    assert ring.match({"Authorization": f"Bearer {key[:-1]}"}) is None
    assert ring.match({"Authorization": key}) is None


@given(st.text(), st.text())
def test_any_header_can_be_judged(authorization: str, key: str) -> None:
    headers = {"Authorization": authorization, "X-Api-Key": key}
    assert KeyRing([ApiKey("sk-never-guessed-0123456789")]).match(headers) is None
    assert KeyRing([]).match(headers) is not None


def test_keys_do_not_show() -> None:
    assert "sk-12345678" not in repr(GatewayConfig(api_keys=(ApiKey("sk-12345678"),)))
