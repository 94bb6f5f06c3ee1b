"""Downloads from a hub on loopback, with everything that goes wrong on the way."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import threading
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import hf_hub_download
from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.library import download as downloads
from meshd.library import hub_cache, hub_client
from meshd.library.download import chosen_model, download, fetch_headers
from meshd.library.hub_client import HubFile, HubListing
from meshd.library.interface import ReportProgress, TransferProgress
from meshd.model.model_name import HubName
from meshd.model.short_names import SHORT_NAMES

from tests.hub_server import COMMIT, Hub

from .models import put, tiny, tiny_shards

NAME = HubName("me", "Tiny-GGUF")
LARGE = bytes(range(256)) * (12 << 10)  # 3 MiB: several pieces
USAGE = namedtuple("USAGE", "total used free")


@pytest.fixture
def cache(home: Path) -> Path:
    return home / "hub"


def get(cache: Path, choice: str = "", told: list[TransferProgress] | None = None) -> list[Path]:
    report = told.append if told is not None else lambda _: None
    return download(HubName(NAME.org, NAME.repo, choice), cache, report)[1]


def has(hub: Hub, **files: bytes) -> None:
    hub.repositories[NAME.repository] = {
        name.replace("__", "-") + ".gguf": data for name, data in files.items()
    }


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models--me--Tiny-GGUF" / "blobs").iterdir())


def test_a_file_is_where_the_library_finds_it(hub: Hub, cache: Path) -> None:
    has(hub, tiny__Q4_K_M=tiny(), tiny__Q8_0=tiny(fill=2))
    told: list[TransferProgress] = []
    [path] = get(cache, told=told)
    assert path.read_bytes() == tiny() and path.name == "tiny-Q4_K_M.gguf"
    theirs = hf_hub_download(NAME.repository, path.name, cache_dir=cache, local_files_only=True)
    assert Path(theirs) == path
    assert path.resolve().name == hashlib.sha256(tiny()).hexdigest()
    [found] = hub_cache.find(cache, NAME)
    assert found.paths == (path,)
    assert [one.done for one in told if one.activity.startswith("downloading")][-1] == len(tiny())


def test_what_the_library_put_there_is_used(hub: Hub, cache: Path) -> None:
    has(hub, tiny__Q4_K_M=tiny())
    theirs = hf_hub_download(NAME.repository, "tiny-Q4_K_M.gguf", cache_dir=cache)
    sent = hub.sent
    assert get(cache) == [Path(theirs)]
    assert hub.sent == sent


def test_all_shards_come(hub: Hub, cache: Path) -> None:
    hub.repositories[NAME.repository] = {**tiny_shards(4), "mmproj-F16.gguf": b"x", "README.md": b"x"}
    paths = get(cache, "Q4_K_M")
    assert [path.name[-19:] for path in paths] == [f"0000{n}-of-00004.gguf" for n in (1, 2, 3, 4)]
    assert {path.name: path.read_bytes() for path in paths} == tiny_shards(4)
    assert {headers["Accept-Encoding"] for headers in hub.headers_of("/bytes/")} == {"identity"}


def test_nothing_is_told_about_this_machine(hub: Hub, cache: Path) -> None:
    has(hub, tiny__Q4_K_M=tiny())
    get(cache)
    agents = {headers["user-agent"].split("/")[0] for _, _, headers in hub.asked}
    assert agents == {"meshd"}
    assert not hub.headers_of("/api/agent-harnesses")
    assert all("torch" not in h["user-agent"] and "agent/" not in h["user-agent"] for _, _, h in hub.asked)


def test_a_cut_connection_is_continued(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    hub.cuts = 2
    [path] = get(cache)
    assert path.read_bytes() == LARGE
    assert hub.sent < 2 * len(LARGE)
    ranges = [headers.get("Range", "") for headers in hub.headers_of("/bytes/")]
    assert len(ranges) == 3 and not ranges[0] and all(one.startswith("bytes=") for one in ranges[1:])


class Killed(BaseException):
    """As Ctrl-C: nothing that ran has a chance to tidy up by itself."""


def test_an_interrupted_download_is_continued_by_the_next(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)

    def stop(progress: TransferProgress) -> None:
        if progress.done >= len(LARGE) // 3:
            raise Killed

    hub.pause = 0.03  # so that progress is told on the way
    for _ in range(3):
        with pytest.raises(Killed):
            download(NAME, cache, stop)
    [part] = leftovers(cache)
    assert part.endswith(".incomplete")
    hub.pause = 0
    before = hub.sent
    [path] = get(cache)
    assert path.read_bytes() == LARGE
    assert hub.sent - before < len(LARGE)
    assert leftovers(cache) == [hashlib.sha256(LARGE).hexdigest()]


def test_a_server_without_ranges_sends_all_again(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    hub.cuts, hub.no_ranges = 1, True
    told: list[TransferProgress] = []
    [path] = get(cache, told=told)
    assert path.read_bytes() == LARGE
    assert max(one.done for one in told) == len(LARGE)


def test_damaged_bytes_are_fetched_again_once(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    hub.corruptions = 1
    told: list[TransferProgress] = []
    [path] = get(cache, told=told)
    assert path.read_bytes() == LARGE
    assert any("again" in one.activity for one in told)


def test_bytes_that_stay_damaged_are_never_used(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    hub.corruptions = 9
    with pytest.raises(UserError, match="arrived damaged, twice") as caught:
        get(cache)
    assert "HF_ENDPOINT" in caught.value.hint
    assert leftovers(cache) == [] and hub_cache.find(cache, NAME) == []
    assert len(hub.headers_of("/bytes/")) == 2


@pytest.mark.parametrize("before", [bytes(1 << 20), LARGE + b"x"], ids=["damaged", "too long"])
def test_what_a_download_before_has_left_is_not_believed(hub: Hub, cache: Path, before: bytes) -> None:
    """Test what was written when the machine lost its power, say."""
    has(hub, a=LARGE)
    put(cache / f"models--me--Tiny-GGUF/blobs/{hashlib.sha256(LARGE).hexdigest()}.incomplete", before)
    assert get(cache)[0].read_bytes() == LARGE


def test_more_bytes_than_announced_are_refused(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    hub.surplus = 1 << 20
    with pytest.raises(UserError, match="sends more than the 3145728 bytes"):
        get(cache)
    assert hub_cache.find(cache, NAME) == []


def test_a_token_goes_to_the_hub_and_not_to_the_store(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(hub, a=tiny())
    hub.token = "hf_secret"
    with pytest.raises(UserError, match=r"there is no repository .* or it is private") as caught:
        get(cache)
    assert "HF_TOKEN" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get(cache)
    sent = {headers.get("authorization", "") for headers in hub.headers_of("/bytes/")}
    assert sent == {""}
    assert hub.headers_of("/api/models/")[-1]["authorization"] == "Bearer hf_secret"


def test_a_login_of_the_library_is_used(hub: Hub, cache: Path, home: Path) -> None:
    has(hub, a=tiny())
    hub.token = "hf_kept"
    (home / "token").write_text("hf_kept\n")
    assert get(cache)[0].read_bytes() == tiny()


def test_a_gated_repository_is_explained(hub: Hub, cache: Path) -> None:
    has(hub, a=tiny())
    hub.token, hub.gated = "hf_x", True
    with pytest.raises(UserError, match="is gated") as caught:
        get(cache)
    assert f"{hub.url}/me/Tiny-GGUF" in caught.value.hint


@pytest.mark.parametrize(("status", "words"), [(403, "not allowed"), (404, "HTTP 404"), (500, "HTTP 500")])
def test_other_answers(hub: Hub, cache: Path, status: int, words: str) -> None:
    hub.status = status
    with pytest.raises(UserError, match=words) as caught:
        get(cache)
    assert caught.value.hint


@pytest.mark.parametrize(
    "body",
    [
        b"<html>please log in</html>",
        b"[]",
        b"{}",
        b'{"id": "x", "siblings": 3, "sha": "y"}',
        b'{"id": "x", "sha": "y", "siblings": [{"rfilename": 3}]}',
        b'{"id": "x", "sha": "../../..", "siblings": [{"rfilename": "a.gguf", "size": 1, "blobId": "'
        + b"a" * 40
        + b'"}]}',
        b'{"id": "x", "sha": "'
        + b"a" * 40
        + b'", "siblings": [{"rfilename": "a.gguf", "size": 1, "blobId": "../x"}]}',
        b'{"id": "x", "sha": "'
        + b"a" * 40
        + b'", "siblings": [{"rfilename": "../a.gguf", "size": 1, "blobId": "'
        + b"a" * 40
        + b'"}]}',
    ],
)
def test_a_server_that_is_no_hub(hub: Hub, cache: Path, body: bytes) -> None:
    hub.repositories[NAME.repository] = {}
    hub.api_body = body
    with pytest.raises(UserError) as caught:
        get(cache)
    assert caught.value.hint
    assert not list(cache.rglob("*.gguf"))


def test_nobody_answers(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"cannot download `me/Tiny-GGUF` from http://127.0.0.1:9") as caught:
        get(cache)
    assert "HF_ENDPOINT" in caught.value.hint


def test_offline_mode_is_explained(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        get(cache)


def test_a_quantisation_that_is_not_there_lists_those_that_are(hub: Hub, cache: Path) -> None:
    has(hub, tiny__Q4_K_M=tiny(), tiny__Q8_0=tiny(fill=2))
    with pytest.raises(UserError, match=r"has no `Q2_K`, but `Q4_K_M` .*, `Q8_0`"):
        get(cache, "Q2_K")


def test_a_repository_without_a_model(hub: Hub, cache: Path) -> None:
    hub.repositories[NAME.repository] = {"model.safetensors": b"x", "mmproj-F16.gguf": b"x"}
    with pytest.raises(UserError, match="has no GGUF file") as caught:
        get(cache)
    assert "-GGUF" in caught.value.hint


def test_two_files_of_one_quantisation_are_listed(hub: Hub, cache: Path) -> None:
    hub.repositories[NAME.repository] = {"a-Q8_0.gguf": tiny(), "b-Q8_0.gguf": tiny()}
    with pytest.raises(UserError, match=r"fits several models: `a-Q8_0.gguf`, `b-Q8_0.gguf`"):
        get(cache, "Q8_0")
    assert get(cache, "b-Q8_0.gguf")[0].name == "b-Q8_0.gguf"


def test_a_repository_that_lacks_a_shard(hub: Hub, cache: Path) -> None:
    parts = tiny_shards(4)
    del parts["tiny-Q4_K_M-00003-of-00004.gguf"]
    hub.repositories[NAME.repository] = parts
    with pytest.raises(UserError, match=r"lacks parts .*00003-of-00004"):
        get(cache)


def test_a_full_disk_is_found_before(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(hub, a=LARGE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: USAGE(0, 0, downloads.RESERVED_BYTES + 100))
    with pytest.raises(
        UserError, match=r"not enough space in .*: 3.1 MB are needed, 67.1 MB are free"
    ) as caught:
        get(cache)
    assert "HF_HUB_CACHE" in caught.value.hint
    assert not hub.headers_of("/bytes/")


def test_a_disk_that_fills_meanwhile(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(hub, a=LARGE)
    free = iter([1 << 40])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: USAGE(0, 0, next(free, 1000)))
    with pytest.raises(UserError, match=r"not enough space .*: only 1.0 kB are free"):
        get(cache)
    monkeypatch.undo()


def test_the_error_of_a_full_disk_is_one_line(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(hub, a=LARGE)

    def full(*_: object, at: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(downloads, "fetch", full)
    with pytest.raises(UserError, match=r"not enough space .*: the disk is full"):
        get(cache)


def test_a_cache_that_cannot_be_written(hub: Hub, cache: Path) -> None:
    has(hub, a=tiny())
    cache.write_text("a file in its place")
    with pytest.raises(UserError, match=r"cannot write .*: not a directory") as caught:
        get(cache)
    assert "HF_HUB_CACHE" in caught.value.hint


def test_two_downloads_of_one_file_take_turns(hub: Hub, cache: Path) -> None:
    has(hub, a=LARGE)
    told: list[TransferProgress] = []
    waiting = threading.Event()

    def report(progress: TransferProgress) -> None:
        told.append(progress)
        if "waiting" in progress.activity:
            waiting.set()

    place = cache / ".locks" / "models--me--Tiny-GGUF" / f"{hashlib.sha256(LARGE).hexdigest()}.lock"
    place.parent.mkdir(parents=True)
    with place.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=download, args=(NAME, cache, report))
        other.start()
        assert waiting.wait(20)
        assert not hub.headers_of("/bytes/")
    other.join(20)
    assert leftovers(cache) == [hashlib.sha256(LARGE).hexdigest()]


def test_a_download_that_waits_for_another_can_be_stopped(hub: Hub, cache: Path) -> None:
    """It reports again and again, and whoever reports may end it."""
    has(hub, a=LARGE)
    told: list[TransferProgress] = []

    def stop(progress: TransferProgress) -> None:
        told.append(progress)
        if sum("waiting" in one.activity for one in told) == 3:
            raise Killed

    place = cache / ".locks" / "models--me--Tiny-GGUF" / f"{hashlib.sha256(LARGE).hexdigest()}.lock"
    place.parent.mkdir(parents=True)
    freed = threading.Timer(10.0, lambda: fcntl.flock(held, fcntl.LOCK_UN))
    with place.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        freed.start()
        try:
            with pytest.raises(Killed):
                download(NAME, cache, stop)
        finally:
            freed.cancel()
            freed.join()
    assert not hub.headers_of("/bytes/")


def _mistyped(cache: Path) -> None:
    with pytest.raises(UserError, match="there is no repository `me/Mistyped`"):
        download(HubName("me", "Mistyped", ""), cache, lambda _: None)


def _stopped(cache: Path) -> None:
    def stop(progress: TransferProgress) -> None:
        if progress.done:
            raise Killed

    with pytest.raises(Killed):
        download(HubName("me", "Other-GGUF", ""), cache, stop)


def _header(cache: Path) -> None:
    assert fetch_headers(HubName("me", "Other-GGUF", ""), cache.parent, lambda _: None)


@pytest.mark.parametrize("other", [_mistyped, _stopped, _header])
def test_one_that_ends_does_not_end_others_of_the_process(
    hub: Hub, cache: Path, other: Callable[[Path], None]
) -> None:
    """The library has one client for all threads."""
    has(hub, a=LARGE)
    hub.repositories["me/Other-GGUF"] = {"other.gguf": tiny()}
    hub.pause, hub.mark = 0.1, 1
    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(download, NAME, cache, lambda _: None)
        try:
            assert hub.reached.wait(20)
            other(cache)
            assert not going.done()
        finally:
            hub.pause = 0.0
        [path] = going.result(20)[1]
    assert path.read_bytes() == LARGE
    ranges = [headers["Range"] for headers in hub.headers_of("/bytes/me/Tiny") if "Range" in headers]
    assert ranges == [], "its connection stayed open"


@pytest.mark.parametrize("use", [download, fetch_headers, downloads.check_download])
def test_the_last_one_closes_the_connections(
    hub: Hub,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[HubName, Path, ReportProgress], object],
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(hub_client, "close_session", lambda: closed.append(len(hub.asked)))
    has(hub, a=tiny())

    def report(_progress: TransferProgress) -> None:
        if not hub.headers_of("/api/models/me/Mistyped"):
            _mistyped(cache)
            assert closed == []

    use(NAME, cache.parent, report)
    assert closed == [len(hub.asked)]


def test_the_branch_is_remembered(hub: Hub, cache: Path) -> None:
    has(hub, a=tiny())
    get(cache)
    assert (cache / "models--me--Tiny-GGUF" / "refs" / "main").read_text() == COMMIT


def test_a_file_too_large_for_plain_http_comes_by_the_librarys_own_means(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a hub without Xet this is the library's plain download: what we check of it is the same."""
    monkeypatch.setattr(downloads, "MOST_PLAIN_BYTES", 1 << 20)
    has(hub, a=LARGE)
    [path] = get(cache)
    assert path.read_bytes() == LARGE and any(command == "HEAD" for command, _, _ in hub.asked)
    has(hub, b=LARGE[::-1])
    hub.corruptions = 9
    with pytest.raises(UserError, match="arrived damaged: its hash is not"):
        get(cache)
    assert len(leftovers(cache)) == 1


@pytest.mark.parametrize(
    ("path", "blob"),
    [
        ("../../../../escaped.gguf", ""),
        ("/escaped.gguf", ""),
        ("a//escaped.gguf", ""),
        ("a.gguf", "../../../escaped"),
        ("a.gguf", "x" * 64),
    ],
)
def test_a_path_that_would_leave_the_cache_is_no_file(hub: Hub, cache: Path, path: str, blob: str) -> None:
    data = tiny()
    digest = hashlib.sha256(data).hexdigest()
    hub.repositories[NAME.repository] = {path: data}
    lfs = {"sha256": blob or digest, "size": len(data), "pointerSize": 1}
    listed = [{"rfilename": path, "size": len(data), "blobId": "0" * 40, "lfs": lfs}]
    hub.api_body = json.dumps({"id": "x", "sha": COMMIT, "siblings": listed}).encode()
    with pytest.raises(UserError, match="has no GGUF file"):
        get(cache)
    assert not hub.headers_of("/bytes/")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_link_to_nothing_is_made_again(hub: Hub, cache: Path, elsewhere: bool) -> None:
    has(hub, a=tiny())
    [path] = get(cache)
    path.resolve().unlink()
    if elsewhere:
        path.unlink()
        path.symlink_to("/moved/away")
    assert get(cache) == [path] and path.read_bytes() == tiny()


def test_it_is_told_that_the_hub_is_asked_before_it_answers(hub: Hub, cache: Path) -> None:
    hub.status = 503
    told: list[tuple[str, int]] = []
    with pytest.raises(UserError, match="HTTP 503"):
        download(NAME, cache, lambda progress: told.append((progress.activity, len(hub.asked))))
    assert told == [(f"asking {hub.url} for the files of `{NAME.repository}`", 0)]


def test_a_name_that_cannot_be_resolved_is_told_in_words() -> None:
    with pytest.raises(UserError, match="its name cannot be resolved: is this machine online") as caught:
        with hub_client.explained("me/Tiny"):
            try:
                raise socket.gaierror(-2, "Name or service not known")
            except socket.gaierror as error:
                raise httpx2.ConnectError(str(error)) from error
    assert "Errno" not in caught.value.what


def test_a_short_names_size_is_corrected_by_the_hubs(hub: Hub, cache: Path) -> None:
    """The table's is an estimate: the disk is checked, and the file fetched, by what the hub says."""
    hub.repositories["unsloth/GLM-4.7-Flash-GGUF"] = {"GLM-4.7-Flash-Q4_K_M.gguf": tiny()}
    name, told = SHORT_NAMES["glm"], list[TransferProgress]()
    said = f"{name} is {in_bytes(len(tiny()))}, not about 18.3 GB, as `meshd model ls --fits` says"
    downloads.check_download(name, cache, told.append)
    assert [one.activity for one in told][1:] == [said]
    model, [path] = download(name, cache, told.append)
    assert model.size == path.stat().st_size == len(tiny())
    assert [one.activity for one in told].count(said) == 2
    has(hub, tiny__Q4_K_M=tiny())
    told.clear()
    get(cache, told=told)
    assert told and not any("not about" in one.activity for one in told)


def listing(*paths: str) -> HubListing:
    return HubListing("c" * 40, tuple(HubFile(path, 10, "") for path in paths))


@pytest.mark.parametrize(
    ("choice", "paths", "words", "hint"),
    [
        ("", (), "has no GGUF file", "-GGUF"),
        ("Q2_K", ("m-Q8_0.gguf",), "has no `Q2_K`, but `Q8_0`", "`hf:me/T:Q8_0`"),
        ("Q2_K", ("plain.gguf",), "has no `Q2_K`, but `plain`", "`hf:me/T:plain.gguf`"),
        ("Q8_0", ("a-Q8_0.gguf", "b-Q8_0.gguf"), "fits several models", "`hf:me/T:a-Q8_0.gguf`"),
        ("Q8_0", ("m-Q8_0-00001-of-00002.gguf",), "lacks parts", "another"),
    ],
)
def test_a_name_that_means_no_model_is_explained(
    choice: str, paths: tuple[str, ...], words: str, hint: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        chosen_model(HubName("me", "T", choice), listing(*paths))
    assert hint in caught.value.hint


@pytest.mark.parametrize(("count", "more"), [(24, ""), (25, " and 1 more"), (30, " and 6 more")])
def test_of_many_models_some_are_named(count: int, more: str) -> None:
    names = [f"m{number}.gguf" for number in range(count)]
    with pytest.raises(UserError) as caught:
        chosen_model(HubName("me", "T", "Q2_K"), listing(*names))
    named = caught.value.what.partition(", but ")[2]
    assert named.count("`") == 2 * min(count, 24)
    assert named.endswith(more or ")")
