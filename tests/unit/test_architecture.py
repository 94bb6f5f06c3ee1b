"""The rules of docs/architecture.md hold for the source as it is, and each rule can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules import behaviour, circles, contracts, purity, reach, shape
from tests.rules.source import ROOT, Fault, Rule, Source, native_sources, sources

EVERYWHERE: tuple[Rule, ...] = (
    shape.file_length,
    shape.function_length,
    shape.docstring,
    shape.name_says,
)
PACKAGE_ONLY: tuple[Rule, ...] = (
    shape.docstring_begins,
    shape.names_hold,
    shape.interface_holds,
    shape.no_any,
    behaviour.owned_tasks,
    behaviour.contained_tasks,
    behaviour.bounded_queues,
    behaviour.caught_errors,
    behaviour.pure,
    purity.purity_word,
    behaviour.prints,
    behaviour.dynamic,
    behaviour.processes,
    behaviour.wall_clock,
    reach.dialables,
    reach.connects,
    reach.limits,
    reach.limited_lines,
)

BODY_OF_61 = "def f():\n" + "    x = 1\n" * 60

LATER = (
    "async def f():\n    async with Owner() as owner:\n        {}:\n            owner.start(f(), name='x')\n"
)

# rule, where the sample pretends to lie, sample, line of the fault
BAD: tuple[tuple[Rule, str, str, int], ...] = (
    (shape.file_length, "meshd/x.py", '"""x"""\n' * 701, 701),
    (shape.file_length, "tests/x.py", '"""x"""\n' * 701, 701),
    (shape.file_length, "native/mesh/x.cpp", "// Made from x by y.\n" + "int i;\n" * 700, 701),
    (shape.function_length, "meshd/x.py", BODY_OF_61, 1),
    (shape.docstring, "meshd/x.py", "import os\n", 1),
    (shape.docstring_begins, "meshd/x.py", '"""What x is."""\n', 1),
    (shape.docstring_begins, "meshd/x.py", 'def f():\n    """Whether x."""\n', 1),
    (
        shape.docstring_begins,
        "meshd/x.py",
        'class A:\n    @property\n    def f(self):\n        """Of x."""\n',
        3,
    ),
    (shape.name_says, "meshd/base/utils.py", "", 1),
    (shape.names_hold, "meshd/x.py", "it = 1\n", 1),
    (shape.names_hold, "meshd/x.py", "x = [one for one in y]\n", 1),
    (shape.names_hold, "meshd/x.py", "def f(*, told): ...\n", 1),
    (shape.names_hold, "meshd/x.py", "class A:\n    async def _said(self): ...\n", 2),
    (shape.names_hold, "meshd/x.py", "self._whom = 1\n", 1),
    (shape.no_any, "meshd/x.py", "from typing import Any\nx: Any = 1\n", 2),
    (shape.no_any, "meshd/x.py", "import typing\nx: dict[str, typing.Any]\n", 2),
    (shape.interface_holds, "meshd/x/interface.py", "def f(): ...\n", 1),
    (shape.interface_holds, "meshd/x/interface.py", "class A:\n    pass\n", 1),
    (shape.interface_holds, "meshd/x/interface.py", "@dataclass(frozen=True)\nclass A:\n    x: int\n", 2),
    (reach.dialables, "meshd/x.py", "places = [Dialable(one) for one in told]\n", 1),
    (reach.dialables, "meshd/x.py", "places = cast(list[Dialable], told)\n", 1),
    (reach.connects, "meshd/link/x.py", "loop.sock_connect(sock, (host, port))\n", 1),
    (reach.limits, "meshd/peer/x.py", "MAX_THINGS = 64\n", 1),
    (reach.limited_lines, "meshd/peer/x.py", "LOG.warning('refused', why=why)\n", 1),
    (reach.limited_lines, "meshd/worker/lending.py", "LOG.info('lease_refused', peer=hello.name)\n", 1),
    (reach.limited_lines, "meshd/peer/x.py", "say = LOG.debug if x else LOG.info\nsay('refused')\n", 2),
    (reach.limited_lines, "meshd/x.py", "logger.info(f'state_{state}', peer=peer.short)\n", 1),
    (reach.limited_lines, "meshd/x.py", "_log.error('broken', peer=peer.short)\n", 1),
    (reach.connects, "meshd/peer/x.py", "asyncio.open_connection(host, port)\n", 1),
    (behaviour.owned_tasks, "meshd/x.py", "import asyncio\nasyncio.create_task(f())\n", 2),
    (behaviour.owned_tasks, "meshd/x.py", "asyncio.get_running_loop().create_task(f())\n", 1),
    (behaviour.owned_tasks, "meshd/x.py", "asyncio.gather(f(), g())\n", 1),
    (behaviour.owned_tasks, "meshd/x.py", "loop.call_later(1, f)\n", 1),
    (behaviour.contained_tasks, "meshd/x.py", "self._owner.start(f(), name='x')\n", 1),
    (behaviour.contained_tasks, "meshd/x.py", "def f(owner):\n    owner.start(g(), name='x')\n", 2),
    (behaviour.contained_tasks, "meshd/x.py", LATER.format("while True"), 4),
    (behaviour.contained_tasks, "meshd/x.py", LATER.format("def arrived(link)"), 4),
    (behaviour.bounded_queues, "meshd/x.py", "q = asyncio.Queue()\n", 1),
    (behaviour.bounded_queues, "meshd/x.py", "q: Q = asyncio.Queue[bytes](maxsize=0)\n", 1),
    (behaviour.caught_errors, "meshd/x.py", "try:\n    f()\nexcept Exception:\n    pass\n", 3),
    (behaviour.caught_errors, "meshd/x.py", "try:\n    f()\nexcept:\n    log()\n", 3),
    (
        behaviour.caught_errors,
        "meshd/x.py",
        "try:\n    f()\nexcept (OSError, asyncio.CancelledError):\n    pass\n",
        3,
    ),
    (behaviour.caught_errors, "meshd/x.py", "with contextlib.suppress(Exception):\n    f()\n", 1),
    (behaviour.pure, "meshd/mux/x.py", "import time\n", 1),
    (behaviour.pure, "meshd/mux/x.py", "from os import path\n", 1),
    (behaviour.pure, "meshd/wire/x.py", "async def f(): ...\n", 1),
    (behaviour.pure, "meshd/x.py", '"""Sums. Pure."""\nimport time\n', 2),
    (behaviour.pure, "meshd/x.py", '"""Sums.\nPure.\n\nMore.\n"""\nimport time\n', 6),
    (purity.purity_word, "meshd/x.py", '"""Sums: pure."""\n', 1),
    (purity.purity_word, "meshd/x.py", '"""Pure: sums."""\n', 1),
    (purity.purity_word, "meshd/x.py", '"""Sums (pure)."""\n', 1),
    (purity.purity_word, "meshd/x.py", '"""Sums.\n\nOf numbers. Pure.\n"""\n', 1),
    (purity.purity_word, "meshd/mux/x.py", '"""Sums. Pure."""\n', 1),
    (behaviour.pure, "meshd/model/x.py", "open('x')\n", 1),
    (behaviour.prints, "meshd/x.py", "print(1)\n", 1),
    (behaviour.dynamic, "meshd/x.py", "eval('1')\n", 1),
    (behaviour.dynamic, "meshd/x.py", "import pickle\n", 1),
    (behaviour.dynamic, "meshd/x.py", "from marshal import loads\n", 1),
    (behaviour.processes, "meshd/x.py", "import subprocess\n", 1),
    (behaviour.processes, "meshd/x.py", "asyncio.create_subprocess_exec('ls')\n", 1),
    (behaviour.processes, "meshd/x.py", "os.system('ls')\n", 1),
    (behaviour.wall_clock, "meshd/x.py", "import time\ntime.time()\n", 2),
    (behaviour.wall_clock, "meshd/x.py", "from time import time\n", 1),
    (behaviour.wall_clock, "meshd/x.py", "datetime.datetime.now()\n", 1),
)

GOOD: tuple[tuple[Rule, str, str], ...] = (
    (shape.docstring, "meshd/x/__init__.py", ""),
    (shape.docstring_begins, "meshd/x.py", 'def f():\n    """Return what x is."""\n'),
    (shape.names_hold, "meshd/x.py", "told_at = with_one = other.told\n"),
    (shape.file_length, "tests/x.py", '"""x"""\n' * 700),
    (shape.file_length, "native/mesh/x.cpp", "int i;\n" * 700),
    (
        shape.interface_holds,
        "meshd/x/interface.py",
        "X = 1\nclass A(Protocol): ...\nclass B(StrEnum): ...\nclass C(MeshdError): ...\n"
        "@dataclass(frozen=True, slots=True)\nclass D: ...\n",
    ),
    (behaviour.owned_tasks, "meshd/x.py", "owner.start(f(), name='x')\n"),
    (behaviour.contained_tasks, "meshd/x.py", LATER.format("for sock in sockets")),
    (behaviour.contained_tasks, "meshd/x.py", "self._owner.start_for('peer', f(), name='x')\n"),
    (behaviour.contained_tasks, "meshd/x.py", "sock.start(self)\n"),
    (behaviour.bounded_queues, "meshd/x.py", "asyncio.Queue(8)\nasyncio.Queue(maxsize=8)\n"),
    (behaviour.caught_errors, "meshd/x.py", "try:\n    f()\nexcept BaseException:\n    close()\n    raise\n"),
    (behaviour.pure, "meshd/link/x.py", "import time\n"),
    (behaviour.pure, "meshd/x.py", '"""Sums.\n\nThe pure part is elsewhere.\n"""\nimport time\n'),
    (purity.purity_word, "meshd/x.py", '"""Sums, of pure functions."""\n'),
    (purity.purity_word, "meshd/x.py", '"""Sums. Pure."""\n'),
    (reach.dialables, "meshd/x.py", "dial(trusted(told))\n"),
    (reach.limits, "meshd/peer/x.py", "MAX_THINGS = THINGS.most\nMAX_BLOB_BYTES = 64\n"),
    (reach.limited_lines, "meshd/peer/x.py", "LOG.warning('refused', peer=peer.short)\nLOG.debug('x')\n"),
    (reach.limited_lines, "meshd/head/model.py", "LOG.info('plan', why=why)\n"),
    (reach.limited_lines, "meshd/peer/x.py", "say = LOG.info\nsay('refused', peer=self.peer.short)\n"),
    (reach.connects, "meshd/link/x.py", "loop.create_connection(make, sock=sock)\n"),
    (behaviour.wall_clock, "meshd/x.py", "loop.time()\n"),
)


def faults(rules: tuple[Rule, ...], found_in: tuple[Source, ...]) -> list[Fault]:
    return [fault for source in found_in for rule in rules for fault in rule(source)]


def test_the_package_keeps_every_rule() -> None:
    found = faults(EVERYWHERE + PACKAGE_ONLY, sources("meshd"))
    assert not found, "\n" + "\n".join(map(str, found))


def test_the_tests_keep_the_rules_of_shape() -> None:
    found = faults(EVERYWHERE, sources("tests"))
    assert not found, "\n" + "\n".join(map(str, found))


def test_native_files_are_short_too() -> None:
    found = faults((shape.file_length,), native_sources())
    assert not found, "\n" + "\n".join(map(str, found))
    folders = {source.path.rpartition("/")[0] for source in native_sources()}
    assert folders == {"native/mesh", "native/mesh/tests", "native/fuzz"}


@pytest.mark.parametrize(("rule", "path", "text", "line"), BAD)
def test_a_rule_finds_its_bad_sample(rule: Rule, path: str, text: str, line: int) -> None:
    found = list(rule(Source.of(path, text)))
    assert [fault.line for fault in found] == [line]
    assert str(found[0]).startswith(f"{path}:{line}: {found[0].rule}: ")


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_lets_a_good_sample_pass(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Source.of(path, text)))


def test_every_rule_has_a_bad_sample() -> None:
    assert set(EVERYWHERE + PACKAGE_ONLY) == {rule for rule, *_ in BAD}


def test_own_work_is_still_there() -> None:
    """A listed task that is gone, or started straight, leaves the list."""
    for path, beginning in sorted(behaviour.OWN_WORK):
        elsewhere = Source.of("meshd/x.py", (ROOT / path).read_text(encoding="utf-8"))
        found = [fault.line for fault in behaviour.contained_tasks(elsewhere)]
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert any(beginning in line for at in found for line in lines[at - 1 : at + 4]), (path, beginning)


def test_lines_of_no_peer_are_still_there() -> None:
    """A listed line that is gone, or names its peer, leaves the list."""
    for path, kind in sorted(reach.OF_NO_PEER):
        elsewhere = Source.of("meshd/peer/x.py", (ROOT / path).read_text(encoding="utf-8"))
        assert any(f"`{kind}` names" in fault.what for fault in reach.limited_lines(elsewhere)), (path, kind)
    for path in reach.HEARD_BY_PEERS:
        assert (ROOT / path).exists(), path


EXCEPTIONS: tuple[tuple[Rule, frozenset[str]], ...] = (
    (behaviour.owned_tasks, behaviour.TASKS_ALLOWED),
    (behaviour.owned_tasks, behaviour.TIMERS_ALLOWED),
    (behaviour.processes, behaviour.PROCESSES_ALLOWED),
    (behaviour.wall_clock, behaviour.WALL_CLOCK_ALLOWED),
    (reach.limited_lines, reach.ERRORS_ALLOWED | reach.KINDS_OF_A_TABLE),
)


def test_exceptions_are_still_needed() -> None:
    """A listed file that is gone, or needs its exception no more, leaves the list."""
    for rule, listed in EXCEPTIONS:
        for path in sorted(listed):
            elsewhere = Source.of("meshd/x.py", (ROOT / path).read_text(encoding="utf-8"))
            assert list(rule(elsewhere)), f"`{path}` needs no exception from {rule.__name__}"


def test_the_contract_holds_for_what_says_that_it_is_pure() -> None:
    """Its list is made of the docstrings: `make reference`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = purity.pure_modules(sources("meshd"))
    assert {"meshd.wire", "meshd.mux", "meshd.model", "meshd.rpc"} <= set(names)
    assert purity.listed(text) == names
    assert purity.written(text, names) == text


def test_the_contract_is_written_anew() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    fewer = purity.written(text, ["meshd.wire"])
    assert purity.listed(fewer) == ["meshd.wire"]
    assert purity.written(fewer, purity.listed(text)) == text


def test_a_package_speaks_for_its_modules() -> None:
    package = Source.of("meshd/x/__init__.py", '"""Sums. Pure."""\n')
    inside = Source.of("meshd/x/y.py", '"""More."""\n')
    alone = Source.of("meshd/z.py", '"""Differences. Pure."""\n')
    other = Source.of("meshd/xy.py", '"""Nothing."""\n')
    assert purity.pure_modules([package, inside, alone, other]) == ["meshd.x", "meshd.z"]


def test_layers() -> None:
    """The import contracts of pyproject.toml, as `make check` has them."""
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Layers KEPT" in done.stdout


# contract, who imports, what: an import that it is there to prevent
BROKEN: tuple[tuple[str, str, str], ...] = (
    ("Layers", "meshd.link.tcp.pipe", "meshd.peer.interface"),
    ("aiohttp only in gateway", "meshd.admin.server", "aiohttp"),
    ("msgpack only in wire/message.py", "meshd.wire.frame", "msgpack"),
    ("structlog only in base/log.py", "meshd.peer.mesh", "structlog"),
    ("cryptography only in identity", "meshd.link.secure.tls", "cryptography"),
    ("zeroconf only in rendezvous/mdns.py", "meshd.rendezvous.book", "zeroconf"),
    ("aioquic only in link/quic/engine.py", "meshd.link.port_prediction.links", "aioquic"),
    ("aioquic only in link/quic/engine.py", "meshd.bench.transport_end", "aioquic"),
    ("aiortc only in link/webrtc/aiortc_parts.py", "meshd.link.webrtc.session", "aiortc"),
    ("aiortc only in link/webrtc/aiortc_parts.py", "meshd.bench.transport_end", "aiortc"),
    ("aioice only in link/ice/agent.py", "meshd.link.webrtc.session", "aioice"),
    ("huggingface_hub only in library/hub_client.py", "meshd.library.download", "huggingface_hub"),
    ("opentelemetry only in gateway/tracing.py", "meshd.gateway.server", "opentelemetry"),
    ("prometheus_client only in base/metrics.py", "meshd.gateway.metrics", "prometheus_client"),
    ("httpx2 only in library/hub_client.py", "meshd.library.download", "httpx2"),
    ("rich only in cli/layout.py and output.py", "meshd.cli.status", "rich"),
    (
        "Implementations are imported by their own package and the daemon",
        "meshd.head.model",
        "meshd.tunnel.user_tunnels",
    ),
    ("Pure code touches no clock, socket, loop, file, log or chance", "meshd.mux.session", "time"),
    ("The CLI talks to a running daemon through admin/client.py", "meshd.cli.status", "meshd.peer.mesh"),
    ("process knows only base", "meshd.process.child", "meshd.wire.frame"),
)
KEPT: tuple[tuple[str, str, str], ...] = (
    ("aioquic only in link/quic/engine.py", "meshd.link.quic.engine", "aioquic"),
    ("aiortc only in link/webrtc/aiortc_parts.py", "meshd.link.webrtc.aiortc_parts", "aiortc"),
    ("aioice only in link/ice/agent.py", "meshd.link.ice.agent", "aioice"),
    ("huggingface_hub only in library/hub_client.py", "meshd.library.hub_client", "huggingface_hub"),
    ("httpx2 only in library/hub_client.py", "meshd.library.hub_client", "httpx2"),
)


@pytest.mark.parametrize(("name", "importer", "imported"), BROKEN)
def test_a_contract_is_broken_by_its_bad_sample(name: str, importer: str, imported: str) -> None:
    assert not contracts.keeps(name, importer, imported)


@pytest.mark.parametrize(("name", "importer", "imported"), KEPT)
def test_a_contract_lets_its_own_place_import(name: str, importer: str, imported: str) -> None:
    assert contracts.keeps(name, importer, imported)


def test_every_contract_has_a_bad_sample() -> None:
    assert set(contracts.contracts()) == {name for name, *_ in BROKEN}


def test_no_module_needs_itself() -> None:
    assert circles.circles("meshd") == []


def test_a_circle_is_found_through_other_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test imports at the top, in a function and for the type checker; those outside it are not named."""
    package = tmp_path / "round_about"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from round_about.b import x\n",
        "b": "def x():\n    from round_about import c\n",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import round_about.a\n",
        "before": "import round_about.a\n",
        "d": "import round_about.e\n",
        "e": "from round_about import d, after\n",
        "after": "",
    }.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = circles.circles("round_about")
    assert found == [
        ("round_about.a", "round_about.b", "round_about.c"),
        ("round_about.d", "round_about.e"),
    ]
