"""Warnings: each code from the state that it stands for, and none without a reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from meshd.admin.health import examine
from meshd.admin.status import ChildView, DeviceView, MeshView, PeerView, Status
from meshd.link.transport import LinkKind
from meshd.model.status import ModelState, NetworkTensor, Speeds, StoreStatus
from meshd.rendezvous.interface import MdnsStatus
from meshd.wire.versions import NativeVersion

from .codes import warning_codes
from .fake import LINK, MODEL, PEER, full_status

NATIVE = NativeVersion("mesh 4", "pin", "sources", "cpu")
VULKAN = DeviceView(
    name="Vulkan0", kind="gpu", description="NVIDIA T4", free_bytes=1, total_bytes=2, listed_s=0.0
)
RELAYED = replace(LINK, kind=LinkKind.RELAY, path="relayed")
Change = Callable[[Status], Status]


def calm() -> Status:
    """Nothing to warn of."""
    return replace(full_status(), model=replace(MODEL, tensors_from_network=(), weights_network_bytes=0))


def peer(**changes: object) -> Change:
    make: Callable[..., PeerView] = replace
    return lambda status: replace(status, peers=(make(PEER, **changes),))


def model(**changes: object) -> Change:
    make: Callable[..., object] = replace
    return lambda status: replace(status, model=make(status.model, **changes))  # type: ignore[arg-type]


def child(**changes: object) -> Change:
    make: Callable[..., ChildView] = ChildView
    base = {"name": "mesh-server", "pid": 1, "state": "ready", "restarts": 0}
    return lambda status: replace(status, children=(make(**{**base, **changes}),))


def alone(status: Status, *, uptime_s: float = 60.0, **changes: object) -> Status:
    """No peer was met since the start."""
    unmet = peer(**{"state": "known", "link": None, "native_protocol": "", "state_s": 50.0, **changes})
    return unmet(replace(status, node=replace(status.node, uptime_s=uptime_s), tunnels=()))


def codes(status: Status, **more: object) -> list[str]:
    ask: Callable[..., Status] = examine
    return [warning.code for warning in ask(status, **more).warnings]


def test_vulkan_is_right_for_other_cards() -> None:
    assert codes(replace(calm(), devices=(replace(VULKAN, description="AMD Radeon"),))) == []


def unused(change: Change) -> Change:
    """The same, and no model is served with the help of that peer."""
    return lambda status: replace(change(status), tunnels=())


CASES: list[tuple[str, Change]] = [
    ("not_in_mesh", lambda status: replace(status, mesh=None)),
    ("banned", peer(state="known", link=None, last_error="out", says_banned="out", state_s=9999.0)),
    ("identity_copied", peer(state="known", link=None, says_in_use="in use at 10.0.0.9:1", state_s=9999.0)),
    ("nobody_reached", alone),
    ("peer_suspended", peer(state="suspended", state_s=10.0, link=None, last_error="no route")),
    ("peer_lost", peer(state="lost", link=None)),
    ("peer_unreachable", peer(state="connecting", link=None, last_error="refused")),
    ("peer_faults", peer(faults=1, last_fault="greeting: expected `go`")),
    ("version_mismatch", peer(version="0.2.0")),
    (
        "version_refused",
        peer(
            state="connecting", link=None, last_error="version 2", upgrade="run `meshd upgrade`", state_s=60.0
        ),
    ),
    ("relayed", peer(link=RELAYED, why_not_direct="both symmetric")),
    ("name_shared", peer(name="desk")),
    ("mdns_silent", lambda status: replace(status, mdns=MdnsStatus(state="silent", networks=("eth0",)))),
    ("child_failed", child(state="failed", reason="exit code 1")),
    ("child_restarts", child(restarts=3)),
    ("tensors_from_network", lambda status: replace(status, model=MODEL)),
    ("model_failed", model(state="failed", reason="out of memory")),
    ("model_slow", model(measured=Speeds(20.0, 9.9), predicted=Speeds(30.0, 20.0))),
    ("model_waiting", model(state="waiting", reason="1 more worker")),
    ("weights_not_kept", lambda status: replace(status, store=StoreStatus("/c/t", 0, 0, 0, "no space"))),
    ("no_cuda", lambda status: replace(status, devices=(VULKAN,))),
]


def test_the_warning_of_an_idle_cuda_leaves_the_way_to_doctor() -> None:
    """Which knows whether this meshd can be added to."""
    (warning,) = examine(replace(calm(), devices=(VULKAN,))).warnings
    assert "`meshd doctor`" in (warning.hint or "") and "native add" not in (warning.hint or "")


def test_a_calm_status_has_no_warning() -> None:
    assert codes(calm(), native=NATIVE, clock_offsets={PEER.id: 1.0}) == []


@pytest.mark.parametrize(("code", "change"), CASES, ids=[code for code, _ in CASES])
def test_each_state_has_its_warning(code: str, change: Change) -> None:
    status = examine(change(calm()))
    assert [warning.code for warning in status.warnings] == [code]
    warning = status.warnings[0]
    assert warning.what and warning.hint and not warning.what.endswith(".")


def test_weights_that_no_worker_has_are_only_a_remark() -> None:
    """A worker without `--model` is meant to take them from the network."""

    def severity(*reasons: str) -> tuple[str, str]:
        tensors = tuple(NetworkTensor(f"blk.{n}.x", 8, "garage", why) for n, why in enumerate(reasons))
        shown = replace(MODEL, tensors_from_network=tensors)
        [warning] = examine(replace(calm(), model=shown)).warnings
        return warning.severity, warning.what

    assert severity("no such hash", "no such hash") == (
        "info",
        "2 tensors (16 B) came over the network: blk.0.x, blk.1.x",
    )
    assert severity("no such hash", "unreadable") == (
        "warning",
        "1 tensor (8 B) came over the network: blk.1.x",
    )


def test_each_of_several_models_has_its_warning() -> None:
    small = replace(MODEL, tensors_from_network=(), name="small", state=ModelState.UNLOADED)
    failed = replace(small, name="big", state=ModelState.FAILED, reason="no memory")
    status = examine(replace(calm(), model=small, models=(small, failed)))
    assert [(one.code, "`big`" in one.what) for one in status.warnings] == [("model_failed", True)]


def test_what_is_waited_for_decides_what_is_to_be_done() -> None:
    def hint(change: Change, reason: str) -> str:
        waits = model(state="waiting", reason=reason, too_few_workers=reason == few)
        [warning] = examine(waits(change(calm()))).warnings
        return warning.hint

    few = "waiting for workers: 0 of 1 ready"
    assert hint(peer(), few).startswith("start the workers that it waits for")
    paused = hint(peer(paused=True), few)
    assert paused.startswith("run `meshd resume` on garage")
    fetching = hint(peer(paused=True, fetching=True), few)
    assert fetching.startswith("wait until garage has its model")
    alone = hint(lambda status: replace(status, peers=()), few)
    for word in ("`meshd worker --join INVITE`", "`meshd invite`", "`--min-workers 0`"):
        assert word in alone
    lacking = hint(lambda status: replace(status, peers=()), "waiting for a worker: it does not fit")
    assert "`meshd worker --join INVITE`" in lacking and "--min-workers" not in lacking


@pytest.mark.parametrize(
    "change",
    [
        unused(peer(state="suspended", state_s=9.9, link=None)),
        unused(peer(state="suspended", state_s=None, link=None)),
        peer(state="connecting", link=None, last_error="refused", state_s=1.0),
        peer(state="known", link=None, last_error=""),
        peer(version=""),
        peer(state="lost", link=None, last_error="gone", state_s=600.0),
        peer(state="known", link=None, last_error="refused", state_s=600.0),
        peer(state="known", link=None, last_error="refused", state_s=60.0, stopped="the node was stopped"),
        peer(state="connecting", link=None, last_error="refused", state_s=60.0, stopped="it was stopped"),
        peer(
            state="connecting", link=None, last_error="refused", state_s=60.0, native_protocol=""
        ),  # never met
        peer(state="lost", link=None, last_error="refused", state_s=60.0, native_protocol=""),
        child(restarts=2),
    ],
)
def test_what_passes_by_itself_is_no_warning(change: Change) -> None:
    assert codes(change(calm())) == []


def test_answers_that_wait_for_a_worker_are_told_at_once() -> None:
    def told(state_s: float, change: Change = lambda status: status, *, continue_s: float = 0.0) -> str:
        suspended = peer(state="suspended", state_s=state_s, link=None, last_error="", grace_s=120.0)
        status = change(suspended(calm()))
        assert status.api is not None
        [warning] = examine(replace(status, api=replace(status.api, continue_s=continue_s))).warnings
        assert warning.code == "peer_suspended"
        return warning.what

    who = f"a link to `garage` ({PEER.id[:10]})"
    assert told(4.0) == f"requests have waited 4 s for {who}; without one they fail in 116 s"
    assert told(70.0) == f"requests have waited 70 s for {who}; without one they fail in 50 s"
    again = f"requests have waited 70 s for {who}; without one it counts as lost in 50 s; then the model is "
    assert told(70.0, continue_s=300.0) == f"{again}reloaded with standby worker `barn`, and they continue"
    assert (
        told(70.0, model(standby=MODEL.standby[1:]), continue_s=300.0)
        == f"{again}reloaded without it, or when it is back, and they continue"
    )
    loading = peer(state="suspended", state_s=4.0, link=None)(model(state="loading")(calm()))
    assert codes(loading) == []


def test_the_log_of_llama_server_is_named_only_where_it_ran() -> None:
    def hint(reason: str) -> str:
        [warning] = examine(model(state="failed", reason=reason)(calm())).warnings
        return warning.hint

    assert "logs llama-server" in hint("3 times in a row: llama-server ended: exit code 1")
    assert "logs" not in hint("`--tensor-split` names 3 devices, there are 2")


def test_a_speed_that_is_half_of_the_predicted_one_is_no_warning() -> None:
    for measured in (Speeds(15.0, 10.0), Speeds(None, 10.0), Speeds(15.0, None), None):
        assert codes(model(measured=measured, predicted=Speeds(30.0, 20.0))(calm())) == []
    assert codes(model(measured=Speeds(1.0, 1.0), predicted=None)(calm())) == []


def test_native_builds_are_compared_when_both_are_known() -> None:
    def told(protocol: str = NATIVE.protocol, native: str = "pin+sources") -> list[str]:
        return codes(peer(native_protocol=protocol, native=native)(calm()), native=NATIVE)

    assert told(native="other+sources") == told(protocol="mesh 1") == ["native_mismatch"]
    assert told(native="unknown+aa") == told(native="pin+bb") == ["native_differs"]
    assert told() == codes(peer(native="other+aa")(calm())) == []


@pytest.mark.parametrize(("offset", "word"), [(3600.0, "ahead"), (-3600.0, "behind")])
def test_clocks_are_compared(offset: float, word: str) -> None:
    status = examine(calm(), clock_offsets={PEER.id: offset})
    assert [w.code for w in status.warnings] == ["clock_off"]
    assert f"3600 s {word}" in status.warnings[0].what


def test_the_reason_and_the_names_are_told() -> None:
    assert "no route" in examine(dict(CASES)["peer_suspended"](calm())).warnings[0].what
    told = examine(replace(calm(), model=MODEL)).warnings[0]
    assert "blk.3.ffn_up.weight" in told.what and "hash" in told.hint
    assert told.what.startswith("1 tensor (")


def test_what_a_peer_does_wrong_is_counted_in_plain_words() -> None:
    [told] = examine(peer(faults=12, last_fault="a stream that was never opened")(calm())).warnings
    assert "12 times in the last hour" in told.what and "a stream that was never opened" in told.what
    assert f"meshd revoke {PEER.id[:10]}" in told.hint and "same version" in told.hint


@pytest.mark.parametrize(
    ("theirs", "hint"),
    [
        ("0.0.9", f"run `meshd upgrade` on `garage` ({PEER.id[:10]}): it has meshd 0.0.9, this node 0.1.0"),
        ("0.10.0", f"run `meshd upgrade` on this node: it has meshd 0.1.0, `garage` ({PEER.id[:10]}) 0.10.0"),
        ("0.1.0+mine", "install the same version of meshd on this node and `garage`"),
    ],
)
def test_of_two_versions_the_older_is_to_be_upgraded(theirs: str, hint: str) -> None:
    [told] = examine(peer(version=theirs)(calm())).warnings
    assert (told.code, told.severity) == ("version_mismatch", "info")
    assert told.hint.startswith(hint)
    _, worse = examine(
        peer(version=theirs, native_protocol="mesh 1", native="pin+sources")(calm()), native=NATIVE
    ).warnings
    assert (worse.code, worse.hint) == ("native_mismatch", told.hint)


def test_a_refusal_because_of_the_version_is_told_with_its_own_remedy() -> None:
    [told] = examine(dict(CASES)["version_refused"](calm())).warnings
    assert told.severity == "error" and "version 2" in told.what and told.hint == "run `meshd upgrade`"


def test_a_file_that_the_disk_does_not_take_is_told_with_the_remedy() -> None:
    [told] = examine(calm(), unwritten={"book.blob": "no space left on device"}).warnings
    assert (told.code, told.severity) == ("disk", "error")
    assert "book.blob" in told.what and "no space left" in told.what
    assert "free space" in told.hint


def test_a_node_that_reaches_nobody_says_what_to_do_once_that_is_certain() -> None:
    assert codes(alone(calm(), uptime_s=59.0)) == []
    for answered in ({"native_protocol": "mesh 5"}, {"present": True}, {"says_banned": "out"}):
        assert "nobody_reached" not in codes(alone(calm(), **answered))
    nobody = replace(alone(calm()), peers=())
    assert codes(nobody) == [], "a founder waits for its first member"


@pytest.mark.parametrize(
    ("roles", "where", "who"),
    [
        (("use", "work"), "on the node that founded the mesh", "this node, which stays a member"),
        (("admin", "invite", "use", "work"), "`meshd invite` here", "one of the others"),
    ],
)
def test_it_asks_for_an_invite_of_a_node_that_may_make_one(
    roles: tuple[str, ...], where: str, who: str
) -> None:
    status = replace(alone(calm()), mesh=MeshView(id="m", members=2, roles=roles))
    [told] = examine(status).warnings
    assert where in told.hint and who in told.hint and "1 known" in told.what


def test_a_restored_founder_that_knows_nobody_says_how_members_hear_of_it() -> None:
    nobody = replace(alone(calm()), peers=())
    [told] = examine(nobody, restored=True).warnings
    assert told.code == "nobody_reached" and "`meshd invite`" in told.hint
    assert codes(calm(), restored=True) == []


def test_a_root_key_without_a_backup_is_told_once_there_are_members() -> None:
    [told] = examine(calm(), no_backup=True).warnings
    assert (told.code, told.severity) == ("no_backup", "info")
    assert "`meshd mesh export FILE`" in told.hint
    assert codes(replace(calm(), peers=()), no_backup=True) == []


def test_a_copy_of_the_state_directory_is_an_error_by_refusal_and_by_news() -> None:
    [refused] = examine(dict(CASES)["identity_copied"](calm())).warnings
    [heard] = examine(calm(), copied=True).warnings
    assert refused.severity == heard.severity == "error"
    assert "in use at 10.0.0.9:1" in refused.what and "--new-identity" in heard.hint


def test_every_code_is_listed_and_tested() -> None:
    assert {code for code, _ in CASES} | {
        "native_mismatch",
        "native_differs",
        "clock_off",
        "model_file",
        "rpc_refused",
        "device_unfit",
        "unknown_worker",
        "disk",
        "no_backup",
    } == warning_codes()


def test_warnings_of_before_are_replaced() -> None:
    first = examine(replace(calm(), mesh=None))
    assert examine(replace(first, mesh=MeshView(id="m", members=1))).warnings == ()


def test_a_refused_request_is_shown() -> None:
    (told,) = examine(
        calm(), refused=(("a connection of `ab` was ended: command 99", "build both"),)
    ).warnings
    assert (
        told.code == "rpc_refused"
        and "command 99" in told.what
        and told.hint.startswith("build both; if the node is malicious")
    )


def test_a_device_that_failed_its_trial_is_shown() -> None:
    (told,) = examine(calm(), unfit=("device GPU0 is not used: it stood still",)).warnings
    assert told.code == "device_unfit" and "GPU0" in told.what and "driver" in told.hint


def test_a_worker_that_nobody_knows_is_shown() -> None:
    (told,) = examine(calm(), unknown=("no worker is called `nobody` (known: `garage`)",)).warnings
    assert told.code == "unknown_worker" and "`nobody`" in told.what and "meshd peers" in told.hint


def test_a_note_about_a_file_is_shown() -> None:
    (told,) = examine(calm(), file_notes=("`m.gguf` was replaced",)).warnings
    assert (told.code, told.what) == ("model_file", "`m.gguf` was replaced") and told.hint
