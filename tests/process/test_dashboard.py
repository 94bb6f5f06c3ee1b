"""The Grafana dashboard and the docs name metrics that exist, and its expressions are PromQL."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from meshd.admin.status import HealthWarning
from meshd.base.metrics import exposition
from meshd.base.metrics_port import MetricsReader
from meshd.daemon.metrics import node_metrics
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.process.gateway_fake import DONE, chunk, event, streams, world
from tests.process.test_gateway_metrics import TIMINGS
from tests.rules.source import ROOT
from tests.unit.admin.fake import full_status

DASHBOARD = ROOT / "configs" / "grafana-dashboard.json"
OF_SCRAPES = frozenset({"instance", "job"})  # labels that Prometheus adds


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield the panel's title, the expression and the legend of each query, with variables filled in."""
    for panel in dashboard()["panels"]:
        for query in panel.get("targets", ()):
            expression = query["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            yield panel["title"], expression, query["legendFormat"]


OTHER_UNITS = {
    "ms",
    "milliseconds",
    "minutes",
    "hours",
    "days",
    "kb",
    "mb",
    "gb",
    "kib",
    "mib",
    "gib",
    "percent",
}


async def every_family() -> list[Metric]:
    """Return all metrics that a node can have, as a scrape has them."""
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": TIMINGS})
    async with world(streams(chunk("a"), last, DONE)) as here:
        async with await here.chat(stream=True) as reply:
            await reply.read()
        await here.until_idle()
        status = replace(
            full_status(), warnings=(HealthWarning(code="a", severity="info", what="", hint=""),)
        )
        text = exposition(node_metrics(status, MetricsReader.OPERATOR), here.gateway.collect())
    return list(text_string_to_metric_families(text))


async def every_metric() -> dict[str, set[str]]:
    """Return the labels of each metric that a node can have, by name."""
    found: dict[str, set[str]] = {}
    for family in await every_family():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_grafanas_own_model_of_a_dashboard_has_every_field() -> None:
    """It drops what it does not know, and refuses panels and values of another kind."""
    register_default_plugins()
    read = Dashboard.from_json(dashboard())
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == _with_defaults(dashboard(), read)


def _with_defaults(given: Any, read: Any) -> Any:
    """Return what is given, and what the model adds to it."""
    made = json.loads(json.dumps(read, cls=JSONEncoder))

    def merged(one: Any, other: Any) -> Any:
        if isinstance(one, dict) and isinstance(other, dict):
            return {**other, **{name: merged(value, other.get(name)) for name, value in one.items()}}
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            return [merged(*pair) for pair in zip(one, other, strict=True)]
        return one

    return merged(given, made)


def test_the_model_sees_a_field_that_does_not_exist() -> None:
    wrong = dashboard()
    wrong["panels"][1]["gridPosition"] = wrong["panels"][1].pop("gridPos")
    register_default_plugins()
    read = Dashboard.from_json(wrong)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) != _with_defaults(wrong, read)


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


async def test_each_expression_selects_metrics_and_labels_that_exist() -> None:
    metrics = await every_metric()
    for title, expression, legend in expressions():
        _check(title, promql_parser.parse(expression), metrics)
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert shown <= set(re.findall(r"\w+", expression)) | OF_SCRAPES | _labels(expression, metrics), title


def _labels(expression: str, metrics: Mapping[str, set[str]]) -> set[str]:
    return set().union(*(metrics[name] for name in metrics if name in expression))


def _check(title: str, expression: promql_parser.Expr, metrics: Mapping[str, set[str]]) -> None:
    selected: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selected.append(node)
        if isinstance(node, promql_parser.MatrixSelector):
            selected.append(node.vector_selector)

    promql_parser.walk(expression, visit)
    assert selected, title
    for one in selected:
        assert one.name is not None and one.name in metrics, f"{title}: there is no metric `{one.name}`"
        labels = {matcher.name for matcher in one.matchers.matchers}
        assert labels <= metrics[one.name] | OF_SCRAPES, f"{title}: `{one.name}` has no such label: {labels}"


@pytest.mark.parametrize(
    "wrong", ["meshd_no_such_metric", 'meshd_peers{colour="red"}', "rate(meshd_peers[1m]"]
)
async def test_the_check_sees_what_does_not_exist(wrong: str) -> None:
    metrics = await every_metric()
    with pytest.raises((AssertionError, ValueError)):
        _check("wrong", promql_parser.parse(wrong), metrics)


async def test_the_docs_name_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(meshd_[a-z_]+)", page))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in await every_metric()}
    assert len(named) > 3 and named <= families, named - families


async def test_names_have_units() -> None:
    """Prometheus's conventions, as `promtool check metrics` has them."""
    ours = [family for family in await every_family() if family.name.startswith("meshd_")]
    # `_created` is what the library adds
    families = {family.name: family for family in ours if not family.name.endswith("_created")}
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    for name, family in families.items():
        assert family.documentation, name
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name
        assert not OTHER_UNITS & {*name.split("_")}, name
        assert not re.search(r"_(total|count|sum|bucket|gauge|counter|histogram)$", name), name
        assert not re.search(r"_(seconds|bytes|ratio)_", name), f"{name}: its unit comes last"
        samples = {sample.name for sample in family.samples}
        assert family.type != "counter" or samples <= {f"{name}_total", f"{name}_created"}, name
    assert {"meshd_requests", "meshd_link_sent_bytes"} <= families.keys()
