"""Every kind of file below MESHD_CACHE, and those of a relay, on a disk that takes nothing (state_files.py).

`python -m tests.process.cache_files` prints the two lists of docs/disk.md; a test compares them.
"""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.daemon.native import TriedBuild, TriedDevice, keep_choice, kept_choice
from meshd.devices.device_list import CpuCache
from meshd.devices.device_speeds import SpeedCache
from meshd.devices.device_trial import TrialCache, trial_key
from meshd.devices.interface import NativeBuild
from meshd.identity.keystore import Home
from meshd.model.weights_index import PieceIndex
from meshd.relay import run as relay_run
from meshd.store import hash_cache
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import FileState, HashCache, PieceCache
from meshd.store.model_file import ModelFile
from meshd.store.pack import SUFFIX
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import NativeVersion

from tests.gguf_bytes import Tensor, gguf
from tests.process.cache_commands import (
    COMMAND_FAILS,
    Concerned,
    Fail,
    bench_model,
    demo,
    header,
    native_build,
)
from tests.process.failing_disk import ERRNOS, STAGES, FailingDisk, below, failing
from tests.process.state_files import NO_START, WITHOUT, in_words, listing
from tests.unit.store.stored_leases import LARGE, content, held, sends

NOT_KEPT = "not kept, computed again later"
SENT_AGAIN = "not kept, downloaded again for the next load"


@dataclass(frozen=True, slots=True)
class Case:
    """`play` does what writes such files in a folder, looks whether all is whole, and says how it went."""

    name: str
    what: str
    result: str
    play: Callable[[Path, Fail], str]


# -- what a worker and a head keep


async def _kept_after(folder: Path, fail: Fail, index: Callable[[], Awaitable[tuple[object, bool]]]) -> str:
    """`index` is right whatever fails; it says whether it was kept, and it is once it can be written."""
    with fail(below(folder)):
        right, _ = await index()
        again, kept = await index()
        assert again == right
    assert (await index())[0] == right
    assert await index() == (right, True)
    with fail(below(folder)):
        assert await index() == (right, True), "what is there was not read"
    return "written" if kept else NOT_KEPT


async def _hashes(cache: Path, fail: Fail) -> str:
    folder, model = cache / "weights", cache.parent / "model.gguf"
    model.write_bytes(gguf({}, [Tensor("a", (64,)), Tensor("b", (32,), fill=2)]))

    async def index() -> tuple[str, bool]:
        """Start a node, and return what it finds, and whether it was kept."""
        file = await ModelFile.open(model, cache=HashCache(folder))
        try:
            with mock.patch.object(HashCache, "clock_ns", return_value=1 << 62) as asked:
                fingerprint = (await file.index()).fingerprint
            return fingerprint, not asked.called
        finally:
            file.close()

    return await _kept_after(folder, fail, index)


@contextmanager
def _at_once_settled() -> Iterator[None]:
    """A file counts as settled however short ago it was written."""
    with (
        mock.patch.object(hash_cache, "_FINE_TICK_NS", -(1 << 62)),
        mock.patch.object(hash_cache, "_COARSE_TICK_NS", -(1 << 62)),
    ):
        yield


class _Store:
    """A content store as workers use it, each with a start of its own."""

    def __init__(self, cache: Path) -> None:
        self.path = cache / "tensors"
        self._weights = cache / "weights"

    async def lease(self, *tensors: bytes) -> set[bytes]:
        """Return what a lease had; these came for it, and are on the disk if they can be."""
        store = DiskContentStore(self.path, limit=LARGE, cache=HashCache(self._weights))

        async def on_progress(_text: str) -> None: ...

        async with Owner() as owner:
            owner.start(store.serve(), name="store")
            lease_cache = await store.take(peer="peer", on_progress=on_progress)
            found = set() if lease_cache is None else held(lease_cache)
            if lease_cache is not None:
                lease_cache.allow(LARGE)
                sends(lease_cache, *tensors)
                lease_cache.close()
                # waits for what is being written
                after = await store.take(peer="peer", on_progress=on_progress)
                if after is not None:
                    assert held(after) >= found
                    after.close()
            owner.cancel()
        return found


async def _packs(cache: Path, fail: Fail) -> str:
    first, second, third = (content(number) for number in (1, 2, 3))
    store = _Store(cache)

    def packs(path: Path) -> bool:
        return path.parent == store.path and not path.name.endswith(".checked")

    with fail(packs):
        assert await store.lease(first) == set()
    before = await store.lease(second)
    kept = await store.lease()
    assert before <= {first} and kept == {*before, second}
    with fail(packs):
        assert await store.lease(third) == kept, "what is there was not used"
    assert not list(store.path.glob(".new-*"))
    after = await store.lease(third)
    assert kept <= after <= {*kept, third}
    assert await store.lease() == {*kept, third}
    return SENT_AGAIN if first not in kept and third not in after else "written"


async def _checked(cache: Path, fail: Fail) -> str:
    store, tensor = _Store(cache), content(1)
    await store.lease(tensor)
    [pack] = store.path.glob(f"*{SUFFIX}")
    noted = pack.with_name(f"{pack.name}.checked")
    state = FileState.at(pack)
    with _at_once_settled():
        with fail(lambda path: path == noted):
            assert await store.lease() == {tensor}
        kept = noted.exists() and noted.read_text() == state.line
        assert await store.lease() == {tensor}
        assert noted.read_text() == state.line
    return "written" if kept else NOT_KEPT


async def _speeds(cache: Path, fail: Fail) -> str:
    path = cache / "device-speeds"
    old, new = trial_key(["old"]), trial_key(["new"])
    SpeedCache(path).add(old, ((1, 5),))
    before = path.read_bytes()
    with fail(below(cache)):
        speeds = SpeedCache(path)
        speeds.add(new, ((1, 6),))
        assert speeds.find(new) == ((1, 6),), "it is known in the same run"
    kept = path.read_bytes() != before
    speeds = SpeedCache(path)
    assert (speeds.find(new) is not None) is kept
    speeds.add(new, ((1, 6),))
    assert SpeedCache(path).find(new) == ((1, 6),)
    return "written" if kept else NOT_KEPT


async def _cpu(cache: Path, fail: Fail) -> str:
    path = cache / "device-cpu"
    old, new = (OfferedDevice("CPU", "cpu", text, 5, 7, "") for text in ("old", "new"))
    CpuCache(path, "key").keep((old,))
    with fail(below(cache)):
        cpu = CpuCache(path, "key")
        assert cpu.cpu in (old, None), "of a file that cannot be read nothing is known"
        cpu.keep((new,))
        assert cpu.cpu == new, "it is known in the same run"
    kept = CpuCache(path, "key").cpu
    assert kept in (old, new)
    CpuCache(path, "key").keep((new,))
    assert CpuCache(path, "key").cpu == new
    return "written" if kept == new else NOT_KEPT


async def _choice(cache: Path, fail: Fail) -> str:
    natives = []
    for name in ("one", "two"):
        program = cache.parent / name
        program.write_bytes(b"")
        version = NativeVersion("mesh 5", "pin", "sources", name)
        natives.append(NativeBuild(program, program, program, version, "7"))
    device = TriedDevice(OfferedDevice("CPU", "cpu", "a processor", 5, 7), "", 1e9)
    old, new = tried = [TriedBuild(native, (device,)) for native in natives]
    keep_choice(tried, old, cache, machine="m")
    with fail(below(cache)):
        keep_choice(tried, new, cache, machine="m")
        assert kept_choice(natives, cache, machine="m") in (old.native, new.native, None)
    kept = kept_choice(natives, cache, machine="m")
    assert kept in natives
    keep_choice(tried, new, cache, machine="m")
    assert kept_choice(natives, cache, machine="m") == new.native
    return "written" if kept == new.native else NOT_KEPT


async def _pieces(cache: Path, fail: Fail) -> str:
    folder, model = cache / "pieces", cache.parent / "model.gguf"
    model.write_bytes(gguf({}, [Tensor("a", (64,)), Tensor("b", (32,), fill=2)]))

    async def index() -> tuple[PieceIndex, bool]:
        """Start a node, and return what it finds, and whether it was kept."""
        pieces = PieceCache.below(cache)
        with model.open("rb") as file:
            kept = pieces.load([FileState.of(file.fileno())])
            if kept is not None:
                return kept, True
            return await pieces.read([file.fileno()], ["model"], lambda _progress: None), False

    with _at_once_settled():
        return await _kept_after(folder, fail, index)


async def _passed(name: str, cache: Path, fail: Fail) -> str:
    path = cache / name
    old, new = trial_key(["old"]), trial_key(["new"])
    TrialCache(path).add(old)
    before = path.read_bytes()
    with fail(below(cache)):
        passed = TrialCache(path)
        passed.add(new)
        assert old in passed and new in passed, "it is tried again in the same run"
    kept = path.read_bytes() != before
    passed = TrialCache(path)
    assert old in passed and (new in passed) is kept
    passed.add(new)
    assert new in TrialCache(path)
    return "written" if kept else NOT_KEPT


# -- a relay


def _relay(name: str, folder: Path, fail: Fail) -> str:
    """Starts, and is stopped when it serves: by a signal, as always."""
    home = folder / "home" / "relay"
    settings = relay_run.RelaySettings(home=home, host="127.0.0.1", log_level="error")
    urls: list[str] = []

    def serves(text: str) -> None:
        if text.startswith("relay:"):
            urls.append(text)
            signal.raise_signal(signal.SIGTERM)

    with fail(lambda path: below(home)(path) and name in path.name):
        try:
            code = relay_run.run(settings, serves)
        except UserError as error:
            assert error.hint
            result = NO_START
        else:
            assert code == 0 and urls
            result = WITHOUT
    before = Home(home).load_identity()
    assert relay_run.run(settings, serves) == 0
    now = Home(home).load_identity()
    assert now is not None and (before is None or before.peer == now.peer)
    return result


def _running(play: Callable[[Path, Fail], Coroutine[object, object, str]]) -> Callable[[Path, Fail], str]:
    return lambda cache, fail: asyncio.run(play(cache, fail))


CACHE = (
    Case("weights/*.hashes", "hashes of a model's tensors", NOT_KEPT, _running(_hashes)),
    Case("tensors/*.tensors", "downloaded weights", SENT_AGAIN, _running(_packs)),
    Case("tensors/*.checked", "checks of these", NOT_KEPT, _running(_checked)),
    Case("pieces/*.pieces", "hashes of shared models", NOT_KEPT, _running(_pieces)),
    Case("device-cpu", "the CPU, as it was listed", NOT_KEPT, _running(_cpu)),
    Case("device-speeds", "speeds of devices", NOT_KEPT, _running(_speeds)),
    Case(
        "device-trials",
        "devices that passed their trial",
        NOT_KEPT,
        _running(partial(_passed, "device-trials")),
    ),
    Case(
        "native-checks",
        "programs that passed their check",
        NOT_KEPT,
        _running(partial(_passed, "native-checks")),
    ),
    Case("native-choice", "the build to use, of several", NOT_KEPT, _running(_choice)),
    Case("native/", "llama.cpp's source and programs", COMMAND_FAILS, _running(native_build)),
    Case("downloads/", "Python packages", COMMAND_FAILS, _running(partial(demo, "downloads"))),
    Case("models/", "the model of `meshd demo`", COMMAND_FAILS, _running(partial(demo, "models"))),
    Case("models/header-*/", "headers of other machines' models", COMMAND_FAILS, _running(header)),
    Case("bench-models/", "random models of benchmarks", COMMAND_FAILS, _running(bench_model)),
)
RELAY = (
    Case(
        "relay/identity.key",
        "the relay's key, written at the first start",
        NO_START,
        partial(_relay, "identity.key"),
    ),
    Case(
        "relay/lock",
        "the relay that uses the directory",
        f"opened: {NO_START}; written: {WITHOUT}",
        partial(_relay, "lock"),
    ),
)


def result(case: Case, folder: Path, number: int) -> str:
    """Return what became of such files with this errno, at all their stages, each in a place of its own."""
    found: dict[str, list[str]] = {}
    for stage in STAGES:
        hits = 0

        @contextmanager
        def fail(concerned: Concerned, stage: str = stage) -> Iterator[FailingDisk]:
            nonlocal hits
            with failing(concerned, number, stage) as disk:
                yield disk
            hits += disk.hits

        cache = folder / stage / "cache"
        cache.mkdir(mode=0o700, parents=True)
        became = case.play(cache, fail)
        if hits:
            found.setdefault(became, []).append(stage)
    stages = [stage for these in found.values() for stage in these]
    assert {"open", "write"} <= set(stages), f"{case.name}: not every stage was met: {stages}"
    return in_words(found)


if __name__ == "__main__":
    for cases in (CACHE, RELAY):
        with tempfile.TemporaryDirectory() as place:
            cells = [
                [
                    result(case, Path(place) / case.name.replace("/", "-") / str(number), number)
                    for number in ERRNOS
                ]
                for case in cases
            ]
        sys.stdout.write(listing(cases, cells) + "\n\n")
