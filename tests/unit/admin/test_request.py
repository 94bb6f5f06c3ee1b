"""A request knows its name and its reply, and who answers requests answers all of them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.admin import api
from meshd.admin.api import NetcheckReply, NetcheckRequest
from meshd.admin.request import Answers, Request
from meshd.admin.server import AdminServer
from meshd.admin.status import Status
from meshd.base.errors import LocalProtocolError
from meshd.daemon.control import DaemonControl

from .fake import FakeControl


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
    assert api.REQUESTS["netcheck"] is NetcheckRequest
    assert NetcheckRequest.reply_type() is NetcheckReply
    assert all(kind.request_name == name for name, kind in api.REQUESTS.items())


def test_no_two_requests_have_one_name() -> None:
    with pytest.raises(LocalProtocolError, match="two requests have the name `stop`"):

        @dataclass(frozen=True, slots=True, kw_only=True)
        class _(Request[api.Done], name="stop"):
            """Another."""

    assert api.REQUESTS["stop"] is api.StopRequest


@pytest.mark.parametrize("control", [DaemonControl, FakeControl])
def test_every_request_is_answered(control: type[Answers]) -> None:
    assert control.answered() == set(api.REQUESTS.values())


def test_a_class_answers_what_its_base_does() -> None:
    assert _Stops.answered() == {api.StopRequest}
    assert _StopsAndPings.answered() == {api.StopRequest, api.PingRequest}


def test_no_server_without_all_the_answers(tmp_path: Path) -> None:
    with pytest.raises(
        LocalProtocolError, match="no method answers `accept`, `ban_list`, `capacity`, `expose`"
    ):
        AdminServer(home=tmp_path, control=_StopsAndPings())


@pytest.mark.parametrize(("asked", "seconds"), [(1e9, 60.0), (-1.0, 0.01), (2.5, 2.5)])
def test_the_time_of_a_ping_has_bounds(asked: float, seconds: float) -> None:
    assert api.PingRequest(peer="garage", timeout_s=asked).seconds == seconds
