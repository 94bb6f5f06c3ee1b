"""The metrics of a node: the numbers of its status, and no more of them than fit, whoever its peers are."""

from dataclasses import replace

import pytest
from meshd.admin.status import HealthWarning, PeerView, Status
from meshd.base.metrics import MOST_LABEL_LETTERS, exposition
from meshd.base.metrics_port import MetricsReader
from meshd.daemon.metrics import MOST_PEERS, node_metrics
from meshd.model.status import LentState, ModelState
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.admin.fake import LINK, MODEL, PEER, full_status

Values = dict[str, dict[tuple[str, ...], float]]


def shown(status: Status, reader: MetricsReader = MetricsReader.OPERATOR) -> Values:
    """Return the node's metrics, each by the values of its labels in the order of their names."""
    found: Values = {}
    for family in text_string_to_metric_families(exposition(node_metrics(status, reader))):
        for sample in family.samples:
            if sample.name.startswith("process_"):
                continue
            values = found.setdefault(sample.name, {})
            key = tuple(sample.labels.values())
            assert key not in values
            values[key] = sample.value
    return found


def test_the_numbers_are_those_of_the_status() -> None:
    found = shown(full_status())
    assert found["meshd_node_info"] == {("desk", "serve", "0.1.0"): 1.0}
    assert found["meshd_node_memory_bytes"][()] == 50_000_000
    assert found["meshd_mesh_members"][()] == 2
    assert found["meshd_child_ready"]["llama-server",] == 1
    assert found["meshd_api_ready"][()] == 1
    assert found["meshd_kept_weights_limit_bytes"][()] == 20_000_000_000


def test_peers_have_their_link_and_their_name_apart() -> None:
    found, peer = shown(full_status()), "q" * 10
    assert found["meshd_peers"]["connected",] == 1 and found["meshd_peers"]["lost",] == 0
    assert found["meshd_peer_info"] == {("garage", peer, "worker", "0.1.0"): 1.0}
    assert found["meshd_peer_connected"][peer,] == 1 and found["meshd_peer_resumes_total"][peer,] == 2
    way = ("tcp", "lan", peer)
    assert found["meshd_link_rtt_seconds"][way] == pytest.approx(0.001234)
    assert found["meshd_link_sent_bytes_total"][way] == 12_345
    assert found["meshd_link_received_bytes_total"][way] == 678


def test_a_model_is_in_one_state_and_its_split_is_there() -> None:
    found = shown(full_status())
    states = {state: value for (_, state), value in found["meshd_model_state"].items()}
    assert states == {str(state): float(state is ModelState.READY) for state in ModelState}
    assert found["meshd_model_layers"] == {("CPU", "SmolLM2", "garage"): 15.0}
    assert found["meshd_model_drafted_tokens_total"]["SmolLM2",] == 400
    assert found["meshd_model_slots"]["SmolLM2",] == 4
    several = shown(replace(full_status(), models=(MODEL, replace(MODEL, name="other", split=()))))
    assert {name for name, _ in several["meshd_model_state"]} == {"SmolLM2", "other"}
    assert "meshd_model_state" not in shown(replace(full_status(), model=None))


def test_leases_of_one_head_are_one_number() -> None:
    lent = full_status().lent[0]
    two = (replace(lent, computed_s=1.5), replace(lent, bytes=5, state=LentState.LOADING, computed_s=2.0))
    found = shown(replace(full_status(), lent=two))
    assert found["meshd_lent_bytes"] == {("q" * 10, "SmolLM2"): 96_700_005.0}
    assert found["meshd_lent_computed_seconds_total"]["q" * 10, "SmolLM2"] == 3.5


def test_warnings_are_counted_by_code() -> None:
    warning = HealthWarning(code="version_old", severity="warning", what="w", hint="h")
    found = shown(replace(full_status(), warnings=(warning, warning)))
    assert found["meshd_warnings"] == {("version_old", "warning"): 2.0}


def test_the_use_of_keys_is_for_the_operator() -> None:
    found = shown(full_status())
    assert found["meshd_key_answers_total"]["anna",] == 3 and found["meshd_key_requests"]["anna",] == 1
    assert found["meshd_key_prompt_tokens_total"]["anna",] == 120
    for reader in (MetricsReader.MACHINE, MetricsReader.API):
        assert not any("key" in name for name in shown(full_status(), reader))


def test_a_key_shows_the_models_of_the_api_and_no_member() -> None:
    status = full_status()
    assert status.api is not None and status.api.keys
    of_all = exposition(node_metrics(status, MetricsReader.MACHINE))
    with_key = exposition(node_metrics(status, MetricsReader.API))
    for name in ("garage", "desk", "q" * 10):
        assert name in of_all and name not in with_key
    assert {"meshd_api_ready", "meshd_model_state", "meshd_model_slots"} <= shown(
        status, MetricsReader.API
    ).keys()
    without_keys = replace(status, api=replace(status.api, keys=()))
    assert shown(without_keys, MetricsReader.API) == shown(status, MetricsReader.MACHINE)


def _peer(number: int, state: str) -> PeerView:
    name = f'{number}\N{BELL}\n"{{}}\\' + "n" * 1000
    return replace(PEER, id=f"{number:010}" + "q" * 42, name=name, version=name, state=state, link=LINK)  # type: ignore[arg-type]


def test_of_many_peers_with_hostile_names_only_some_are_shown() -> None:
    """Connected ones first, and the same ones at each scrape."""
    away = tuple(_peer(number, "lost") for number in range(900))
    here = tuple(_peer(number, "connected") for number in range(900, 900 + MOST_PEERS - 1))
    status = replace(full_status(), peers=(*away, *here))
    text = exposition(node_metrics(status, MetricsReader.OPERATOR))
    assert len(text) < 150_000
    found = shown(status)
    assert found["meshd_peers"]["lost",] == 900 and found["meshd_peers"]["connected",] == MOST_PEERS - 1
    ids = {peer for (peer,) in found["meshd_peer_connected"]}
    assert ids == {one.id[:10] for one in (away[0], *here)}
    for labels in found["meshd_peer_info"]:
        assert all(label.isprintable() and len(label) <= MOST_LABEL_LETTERS for label in labels)
    assert shown(replace(status, peers=status.peers[::-1])) == found


def test_a_node_alone_has_few() -> None:
    bare = Status(node=full_status().node, mesh=None)
    found = shown(bare)
    assert "meshd_mesh_members" not in found and "meshd_api_ready" not in found
    assert set(found["meshd_peers"].values()) == {0.0}
