"""Requests and replies: each has a method that answers it, and goes to JSON and back; nothing else does."""

import json
from dataclasses import dataclass, fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.admin import api, plan_api, status
from meshd.admin.api import NetcheckReply, NetcheckRequest
from meshd.admin.request import (
    Answers,
    Request,
    decode_line,
    decode_request,
    encode_request,
    from_json,
    requests,
    to_json,
)
from meshd.admin.status import PeerView, Status
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.daemon.control import DaemonControl
from meshd.daemon.mesh_page import MeshPage
from meshd.daemon.plan_answers import PlanAnswers
from meshd.model.status import ModelState, ModelStatus

from .fake import MODEL, PEER, full_status

EXAMPLES: dict[Request[object], str] = {  # as daemons and verbs of other versions write them
    api.StatusRequest(): '{"request":"status"}',
    api.MetricsRequest(): '{"request":"metrics"}',
    api.PingRequest(peer="garage", timeout_s=1.5): '{"request":"ping","peer":"garage","timeout_s":1.5}',
    api.InviteRequest(expires_s=60, uses=1, roles=("use", "work")): (
        '{"request":"invite","expires_s":60,"uses":1,"roles":["use","work"],"browser":""}'
    ),
    api.InviteListRequest(): '{"request":"invite_list"}',
    api.InviteRevokeRequest(id="00ff"): '{"request":"invite_revoke","id":"00ff"}',
    api.RevokeRequest(peer="gar"): '{"request":"revoke","peer":"gar"}',
    api.ForgetRequest(peer="gar"): '{"request":"forget","peer":"gar"}',
    api.BanListRequest(): '{"request":"ban_list"}',
    api.UnbanRequest(id="ab12"): '{"request":"unban","id":"ab12"}',
    api.AcceptRequest(code="meshdreply1abc"): '{"request":"accept","code":"meshdreply1abc"}',
    api.LeaveRequest(drop_root=True): '{"request":"leave","drop_root":true}',
    api.PauseRequest(drain=True): '{"request":"pause","drain":true}',
    api.ResumeRequest(): '{"request":"resume"}',
    api.DrainRequest(): '{"request":"drain","on":true}',
    api.StopRequest(): '{"request":"stop"}',
    plan_api.CapacityRequest(): '{"request":"capacity","again":false}',
    plan_api.FitsRequest(known=(status.StoredFile(name="glm", bytes=8, fingerprint=None),)): (
        '{"request":"fits","known":[{"name":"glm","bytes":8,"fingerprint":null}]}'
    ),
    plan_api.PlanRequest(
        model="/m.gguf", ctx_size=4096, memory=(plan_api.MemoryLimit(node="garage", bytes=8),)
    ): (
        '{"request":"plan","model":"/m.gguf","ctx_size":4096,"streams":0,"largest_context":false,"layers":[],'
        '"draft_model":"","workers":[],"tensor_split":[],"devices":[],"memory":[{"node":"garage","bytes":8}]}'
    ),
    plan_api.WhyRequest(): '{"request":"why"}',
    api.MemberModelsRequest(): '{"request":"member_models"}',
    api.FilesInUseRequest(): '{"request":"files_in_use"}',
    api.PullRequest(name="mesh:glm", rate=5): (
        '{"request":"pull","name":"mesh:glm","rate":5,"header_only":false,"for_plan":false,"background":false,'
        '"download":false}'
    ),
    api.PullProgressRequest(id=3): '{"request":"pull_progress","id":3}',
    api.PullStopRequest(id=3): '{"request":"pull_stop","id":3}',
    NetcheckRequest(): '{"request":"netcheck"}',
    api.ExposeRequest(name="web", target="127.0.0.1:80", to=("garage",)): (
        '{"request":"expose","name":"web","target":"127.0.0.1:80","to":["garage"]}'
    ),
    api.ExposeListRequest(): '{"request":"expose_list"}',
    api.ExposeRemoveRequest(name="web"): '{"request":"expose_remove","name":"web"}',
    api.TunnelOpenRequest(peer="garage", service="web", listen="127.0.0.1:8000"): (
        '{"request":"tunnel_open","peer":"garage","service":"web","listen":"127.0.0.1:8000"}'
    ),
    api.TunnelListRequest(): '{"request":"tunnel_list"}',
    api.UiRequest(): '{"request":"ui"}',
    api.UiLinkRequest(id="0a1b"): '{"request":"ui_link","id":"0a1b"}',
    api.TunnelCloseRequest(peer="garage", service="web"): (
        '{"request":"tunnel_close","listen":"","peer":"garage","service":"web"}'
    ),
}


class _Stops(Answers):
    @api.StopRequest.answer
    async def stop(self, request: api.StopRequest) -> api.Done:
        return api.Done()


class _StopsAndPings(_Stops):
    @api.PingRequest.answer
    async def ping(self, request: api.PingRequest) -> api.PingReply:
        raise NotImplementedError


def test_the_class_of_a_request_carries_its_name_and_its_reply() -> None:
    assert (api.StatusRequest.request_name, api.StatusRequest.reply_type()) == ("status", Status)
    assert requests()["netcheck"] is NetcheckRequest
    assert NetcheckRequest.reply_type() is NetcheckReply
    assert all(kind.request_name == name for name, kind in requests().items())


def test_no_two_requests_have_one_name() -> None:
    with pytest.raises(LocalProtocolError, match="two requests have the name `stop`"):

        @dataclass(frozen=True, slots=True, kw_only=True)
        class _(Request[api.Done], name="stop"):
            """Another."""

    assert requests()["stop"] is api.StopRequest


def test_every_request_is_answered() -> None:
    answered = [DaemonControl.answered(), PlanAnswers.answered(), MeshPage.answered()]
    assert frozenset.union(*answered) == set(requests().values())
    assert sum(map(len, answered)) == len(requests())


def test_a_class_answers_what_its_base_does() -> None:
    assert _Stops.answered() == {api.StopRequest}
    assert _StopsAndPings.answered() == {api.StopRequest, api.PingRequest}


@pytest.mark.parametrize(("asked", "seconds"), [(1e9, 60.0), (-1.0, 0.01), (2.5, 2.5)])
def test_the_time_of_a_ping_has_bounds(asked: float, seconds: float) -> None:
    assert api.PingRequest(peer="garage", timeout_s=asked).seconds == seconds


def test_every_request_has_an_example() -> None:
    assert {type(request) for request in EXAMPLES} == set(requests().values())


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda one: type(one).__name__)
def test_requests_go_round(request_: Request[object]) -> None:
    line = encode_request(request_)
    assert line.decode() == EXAMPLES[request_] + "\n"
    assert decode_request(line) == request_


def test_a_status_goes_round() -> None:
    status = full_status()
    assert from_json(Status, json.loads(json.dumps(to_json(status)))) == status


def test_a_status_without_anything_goes_round() -> None:
    node = full_status().node
    status = Status(node=node, mesh=None)
    body = to_json(status)
    assert isinstance(body, dict)
    assert body["model"] is None and body["api"] is None and body["mesh"] is None and body["peers"] == []
    assert from_json(Status, body) == status


def test_what_packages_say_of_themselves_is_written_as_it_always_was() -> None:
    body = to_json(full_status())
    assert isinstance(body, dict)
    parts = {name: json.dumps(body[name]) for name in ("tunnels", "children", "api", "store")}
    assert parts == {
        "tunnels": (
            f'[{{"peer": "{PEER.id}", "service": "rpc", "listen": "127.0.0.1:4000", "streams": 3, '
            '"sent_bytes": 9, "received_bytes": 8, "user": false, "last_error": "", "peer_name": ""}]'
        ),
        "children": '[{"name": "llama-server", "pid": null, "state": "ready", "restarts": 0, "reason": ""}]',
        "api": '{"url": "http://127.0.0.1:8090", "ready": true, "requests": 1, "tokens": 42, "running": 1, '
        '"waiting": 2, "keys": [{"name": "anna", "active": 1, "answers": 3, "prompt_tokens": 120, '
        '"generated_tokens": 42, "tokens_today": 162}], "reason": "", "continue_s": 0.0}',
        "store": '{"path": "/home/u/.cache/meshd/tensors", "bytes": 7, "limit": 20000000000, "tensors": 3, '
        '"problem": ""}',
    }


def test_the_json_of_a_status_is_what_scripts_rely_on() -> None:
    body = to_json(full_status())
    assert isinstance(body, dict)
    assert body["schema"] == 1
    promised = {
        "node": "id name role version pid uptime_s rss_bytes",
        "mesh": "id members",
        "model": "name fingerprint state reason load_seconds weights_local_bytes weights_network_bytes "
        "tensors_from_network bytes_per_token split",
        "api": "url ready requests tokens",
    }
    for name, words in promised.items():
        assert set(words.split()) <= set(body[name]), name
    rows = {
        "peers": "id name role state link standby_links why_not_direct resumes",
        "tunnels": "peer service listen streams sent_bytes received_bytes",
        "children": "name pid state restarts",
    }
    for name, words in rows.items():
        assert set(words.split()) <= set(body[name][0]), name
    link = body["peers"][0]["link"]
    assert {"kind", "path", "remote", "rtt_ms", "since", "sent_bytes", "received_bytes"} <= set(link)
    assert {"node", "device", "layers", "bytes"} <= set(body["model"]["split"][0])


def test_unknown_fields_are_ignored() -> None:
    assert decode_request(b'{"request":"stop","later":[1]}') == api.StopRequest()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not a line of JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "unknown request `NoneType`"),
        (b'{"request":"explode"}', "unknown request `explode`"),
        (b'{"request":["stop"]}', "unknown request `list`"),
        (b'{"request":"ping"}', "field `peer` of PingRequest is missing: it must be text"),
        (b'{"request":"ping","peer":7}', "field `peer` of PingRequest must be text"),
        (
            b'{"request":"ping","peer":"a","timeout_s":"1"}',
            "`timeout_s` of PingRequest must be a finite number",
        ),
        (
            b'{"request":"ping","peer":"a","timeout_s":true}',
            "`timeout_s` of PingRequest must be a finite number",
        ),
        (b'{"request":"ping","peer":"a","timeout_s":1e999}', "must be a finite number"),
        (b'{"request":"ping","peer":"a","timeout_s":NaN}', "not a line of JSON"),
        (b'{"request":"ping","peer":"a","timeout_s":' + b"9" * 400 + b"}", "must be a finite number"),
        (
            b'{"request":"invite","expires_s":1.5,"uses":1,"roles":[]}',
            "field `expires_s` of InviteRequest must be an integer",
        ),
        (
            b'{"request":"invite","expires_s":1,"uses":1,"roles":"use"}',
            "`roles` of InviteRequest must be a list",
        ),
        (
            b'{"request":"invite","expires_s":1,"uses":1,"roles":[1]}',
            "field `roles` of InviteRequest: its `\\[0\\]` must be text",
        ),
        (b'{"request":"leave","drop_root":1}', "`drop_root` of LeaveRequest must be true or false"),
        (b'{"request":"ping","peer":' + b"[" * 60000, "not a line of JSON"),
        (b"\xff\xfe{", "not a line of JSON"),
    ],
)
def test_what_is_no_request(line: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words) as caught:
        decode_request(line)
    assert caught.value.code == "message"


@pytest.mark.parametrize("change", [{"state": "gone"}, {"link": {}}, {"link": []}, {"resumes": None}])
def test_what_is_no_peer(change: dict[str, object]) -> None:
    body = to_json(full_status().peers[0])
    assert isinstance(body, dict)
    with pytest.raises(RemoteProtocolError):
        from_json(PeerView, {**body, **change})


def test_the_state_of_a_model_is_one_of_a_few_words() -> None:
    body = to_json(MODEL)
    assert isinstance(body, dict) and json.dumps(body["state"]) == '"ready"'
    assert from_json(ModelStatus, {**body, "state": "degraded"}).state is ModelState.DEGRADED
    wrongs: list[object] = ["gone", "READY", 1, None, []]
    for wrong in wrongs:
        with pytest.raises(
            RemoteProtocolError, match="`state` of ModelStatus must be one of fetching, waiting, loading, re"
        ):
            from_json(ModelStatus, {**body, "state": wrong})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


_NAMED = _JSON.filter(lambda name: not isinstance(name, str) or name not in requests()).map(
    lambda name: {"request": name}
)


@given(line=st.binary(max_size=300) | (_JSON | _NAMED).map(lambda body: json.dumps(body).encode()))
def test_any_bytes_that_name_no_request_are_refused(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"not a line of JSON|not a JSON object|unknown request"):
        decode_request(line)


@given(
    name=st.sampled_from(sorted(requests())),
    body=st.dictionaries(
        st.sampled_from(
            ["peer", "timeout_s", "expires_s", "uses", "roles", "id", "drop_root", "name", "to", "listen"]
        ),
        _JSON,
        max_size=7,
    ),
)
def test_any_fields_are_a_request_of_right_types_or_refused(name: str, body: dict[str, object]) -> None:
    line = json.dumps({**body, "request": name}).encode()
    try:
        request = decode_request(line)
    except RemoteProtocolError:
        return
    assert decode_request(encode_request(request)) == request


@given(body=_JSON)
def test_any_reply_is_a_status_or_refused(body: object) -> None:
    with pytest.raises(RemoteProtocolError):
        from_json(Status, body)


def test_a_reply_is_one_line_whatever_a_peer_is_called() -> None:
    line = encode_request(api.RevokeRequest(peer="a\nb\u2028c\x1b"))
    assert line.count(b"\n") == 1 and line.isascii()
    assert decode_line(line)["peer"] == "a\nb\u2028c\x1b"


def test_every_value_of_the_api_is_frozen_and_described() -> None:
    for name in dir(api):
        kind = getattr(api, name)
        if isinstance(kind, type) and is_dataclass(kind):
            assert kind.__doc__ and not kind.__doc__.startswith(f"{name}("), name
            assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            assert "__slots__" in vars(kind), name
            assert fields(kind) is not None


def test_only_values_have_a_json_form() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json(object())


@pytest.mark.parametrize(
    ("left", "shown"), [(86399.3, "24 h"), (86398.9, "24 h"), (1799.5, "30 min"), (0.4, "1 s"), (-3.0, "0 s")]
)
def test_a_new_invite_is_shown_as_valid_for_as_long_as_was_asked(left: float, shown: str) -> None:
    invite = api.InviteReply(token="meshd1token", id="1234567812345678", expires_at=2_000_000_000, uses=1)
    assert f"1 node and {shown};" in invite.validity(2_000_000_000 - left)
