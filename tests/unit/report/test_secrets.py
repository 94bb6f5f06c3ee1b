"""Where secrets of a node are found, and what is none."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError
from meshd.daemon.network_state import PORTMAP_BLOB
from meshd.identity.folder import INVITE
from meshd.identity.invite_book import InviteBook
from meshd.identity.keystore import IDENTITY, Home
from meshd.identity.membership import Role
from meshd.identity.recovery_code import write_code
from meshd.report.secrets import Places, find_secrets, names_of_user, public_hosts, running_node

SECRET = "a-secret-0123456789"


def places(tmp_path: Path, **environ: str) -> Places:
    """Return places in which only the home and the hub's folder of the test count."""
    hub = {"HF_HOME": str(tmp_path / "hf"), **environ}
    return Places(homes=[tmp_path / "home"], environs=[hub], folder=tmp_path)


def file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def founder(path: Path) -> tuple[Home, set[bytes]]:
    """Return a home with all kinds of keys, and these."""
    home = Home(path)
    key = home.load_or_create_identity()
    membership = home.found_mesh(now=1)
    book = InviteBook(membership.mesh)
    for number in (1, 2):
        secret = bytes([number]) * 16
        book.create(secret=secret, roles=[Role.USE], now=1, expires_at=int(time.time()) + 9, uses=1)
    home.save_invites(book)
    home.keep_blob(PORTMAP_BLOB, b"p" * 32)
    assert membership.root_seed is not None
    code = write_code(membership.root_seed)
    return home, {key.seed, membership.root_seed, code.encode(), b"\x01" * 16, b"\x02" * 16, b"p" * 32}


def test_all_keys_of_a_home_are_found(tmp_path: Path) -> None:
    home, keys = founder(tmp_path / "home")
    file(home.path / INVITE, f"{SECRET}\n")
    assert find_secrets(places(tmp_path)).values >= {*keys, SECRET.encode()}


def test_the_key_of_a_damaged_file_is_found(tmp_path: Path) -> None:
    home, keys = founder(tmp_path / "home")
    damaged = home.path / IDENTITY
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])  # the key, which is random, stays whole
    with pytest.raises(MeshdError):
        home.load_identity()
    assert find_secrets(places(tmp_path)).values >= keys


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "MY_PASSWORD", "X_AUTH", "SECRET", "MESHD_JOIN"]
)
def test_variables_with_names_of_secrets_are_secrets(tmp_path: Path, name: str) -> None:
    assert find_secrets(places(tmp_path, **{name: SECRET})).values == {SECRET.encode()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MESHD_API_KEY_FILE", "keys/of/mine.txt"),
        ("SSH_AUTH_SOCK", "/run/user/1000/agent"),
        ("GIT_AUTHOR_NAME", "Somebody Else"),
        ("PATH", "/usr/local/bin:/usr/bin"),
        ("HTTPS_PROXY", "http://proxy.example.org:3128"),
        ("HF_TOKEN", ""),
    ],
)
def test_others_are_not(tmp_path: Path, name: str, value: str) -> None:
    assert find_secrets(places(tmp_path, **{name: value})).values == set()


def test_the_password_of_a_proxy_is_one(tmp_path: Path) -> None:
    found = find_secrets(places(tmp_path, https_proxy="http://anna:s%2Fcret-word@proxy.lan:3128"))
    assert found.values == {b"s%2Fcret-word", b"s/cret-word"}


def test_no_member_can_declare_a_text_a_secret(tmp_path: Path) -> None:
    """The address book has texts of others; one that looks like a key there would blank the log."""
    home, _ = founder(tmp_path / "home")
    fake = b"link_up area=peer link=tcp name="
    home.keep_blob("book", b"\xa4seed\xc4\x20" + fake)
    assert fake in (home.path / "book.blob").read_bytes()
    assert fake not in find_secrets(places(tmp_path)).values


def test_files_that_are_named_are_read(tmp_path: Path) -> None:
    file(tmp_path / "hf/token", "hub-token-1234567\n")
    file(tmp_path / "hf/stored_tokens", "[main]\nhf_token = hub-token-of-main\n")
    file(tmp_path / "credentials/meshd.join", "credential-12345\n")
    file(tmp_path / "invite.txt", " invite-12345678 \n")
    file(tmp_path / "keys.txt", "# keys\nkey-of-anna name=anna\nkey-of-otto\n# disabled-key-of-somebody\n")
    found = find_secrets(
        Places(
            homes=(),
            environs=[
                {"HF_HOME": str(tmp_path / "hf"), "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
            ],
            invites=["@invite.txt", "an-invite-itself"],
            key_files=[tmp_path / "keys.txt"],
            folder=tmp_path,
        )
    )
    words = {
        "hub-token-1234567",
        "hub-token-of-main",
        "credential-12345",
        "invite-12345678",
        "an-invite-itself",
    }
    words |= {"key-of-anna", "key-of-otto", "disabled-key-of-somebody"}
    assert {word.encode() for word in words} <= found.values
    assert not {b"anna", b"keys", b"name"} & found.values
    assert found.unread == {}


def test_a_broken_configuration_is_searched(tmp_path: Path) -> None:
    file(tmp_path / "keys.txt", f"{SECRET}-key\n")
    config = file(tmp_path / "m.toml", f"[node\njoin = '{SECRET}'\n[serve]\napi_key_file = \"keys.txt\"\n")
    found = find_secrets(Places(homes=(), environs=(), configs=[config], folder=Path("/")))
    assert found.values == {SECRET.encode(), f"{SECRET}-key".encode()}


@pytest.mark.parametrize("words", [("--join", SECRET), (f"--join={SECRET}",), ("--", "--api-key", SECRET)])
def test_words_of_a_command_line_are_searched(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = ["meshd", "serve", "--model", "some-model.gguf", "--api-key-file", "some-file.txt", *words]
    found = find_secrets(Places(homes=(), environs=(), command=command, folder=tmp_path))
    assert found.values == {SECRET.encode()}


def test_a_folder_in_place_of_a_file_is_noted(tmp_path: Path) -> None:
    (tmp_path / "hf/token").mkdir(parents=True)
    assert list(find_secrets(places(tmp_path)).unread) == [str(tmp_path / "hf/token")]


def test_names_of_a_service_are_no_names_of_people() -> None:
    homes, names = names_of_user(
        [{"HOME": "/srv/zoltan", "USER": "zoltan"}, {"LOGNAME": "root", "SUDO_USER": "xy"}]
    )
    assert "/srv/zoltan" in homes and "zoltan" in names
    assert not {"root", "xy", ""} & names


def test_hosts_of_defaults_and_of_a_lan_are_not_masked() -> None:
    texts = [
        "relay://abc@relay.example.org:443",
        "['stun.cloudflare.com:3478', 'box.lan:1', '10.0.0.1:2', 'gpu:3']",
    ]
    assert public_hosts(texts) == {"relay.example.org"}


def test_without_a_daemon_there_is_no_process(tmp_path: Path) -> None:
    assert running_node(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_daemon_is_found_by_its_lock(tmp_path: Path) -> None:
    with Home(tmp_path).lock(daemon=True):
        node = running_node(tmp_path)
        assert node is not None and node.pid == os.getpid()
        assert node.environ["PATH"] == os.environ["PATH"] and node.folder.is_dir() and node.command


@pytest.mark.parametrize(
    "text",
    [
        f"[serve]\nllama_args = ['--api-key', '{SECRET}']\n",
        f'serve.llama_args = [\n  "-ngl", "9",\n  "--hf-token={SECRET}",\n]\n',
        f'[[models]]\nllama_args = ["--api-key", "{SECRET}"\n',
    ],
)
def test_secrets_among_llama_servers_options_in_a_configuration_are_found(tmp_path: Path, text: str) -> None:
    config = file(tmp_path / "m.toml", text)
    found = find_secrets(replace(places(tmp_path), configs=[config]))
    assert found.values == {SECRET.encode()}
