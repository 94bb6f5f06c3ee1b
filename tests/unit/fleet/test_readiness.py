"""When a fleet's model is ready, and when waiting for it has become pointless."""

from dataclasses import replace

import pytest
from meshd.admin.status import Status
from meshd.base.errors import MeshdError
from meshd.fleet.fleet import model_ready, ready_or_raise
from meshd.model.status import ModelState

from tests.unit.admin.fake import MODEL, full_status


def status_of(state: ModelState) -> Status:
    return replace(full_status(), model=replace(MODEL, state=state, reason="because"))


@pytest.mark.parametrize(
    ("state", "ready"),
    [
        (ModelState.WAITING, False),
        (ModelState.LOADING, False),
        (ModelState.READY, True),
        (ModelState.DEGRADED, False),
    ],
)
def test_ready_is_ready_alone(state: ModelState, ready: bool) -> None:
    assert model_ready(status_of(state)) is ready_or_raise(status_of(state)) is ready


def test_a_model_that_failed_is_not_waited_for() -> None:
    assert not model_ready(status_of(ModelState.FAILED))
    with pytest.raises(MeshdError, match="because"):
        ready_or_raise(status_of(ModelState.FAILED))


def test_a_node_without_a_model_is_not_ready() -> None:
    assert not ready_or_raise(replace(full_status(), model=None))


def test_a_model_is_not_ready_before_its_api_is_open() -> None:
    assert not ready_or_raise(replace(status_of(ModelState.READY), api=None))
