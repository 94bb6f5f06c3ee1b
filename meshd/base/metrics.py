"""Metrics in Prometheus's text format; the only user of prometheus_client.

That takes megabytes, so a node imports this module once somebody reads its metrics; a gateway, which counts
requests from its start, has it always. Names follow Prometheus's rules: base units, `_total` for counters.

Labels may hold what other nodes chose. A value is cut and made printable (`label`), and each place bounds how
many there are: Prometheus keeps a series for each, for weeks.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

MOST_LABEL_LETTERS = 64
OTHERS = "(others)"
Key = TypeVar("Key", bound=str | tuple[str, ...])
"""The value of the one label, or those of all."""
__all__ = [
    "MOST_LABEL_LETTERS",
    "OTHERS",
    "CollectorRegistry",
    "Counter",
    "FewNames",
    "Histogram",
    "Metric",
    "counter",
    "exposition",
    "gauge",
    "label",
]


def label(text: str) -> str:
    """Return a label's value: printable, and not too long."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= MOST_LABEL_LETTERS else shown[: MOST_LABEL_LETTERS - 1] + "…"


def gauge(name: str, meaning: str, values: "float | Mapping[Key, float]", *labels: str) -> Metric:
    """Return a metric that goes up and down: one value, or one for each set of `labels`."""
    return _filled(GaugeMetricFamily(name, meaning, labels=labels), values)


def counter(name: str, meaning: str, values: "float | Mapping[Key, float]", *labels: str) -> Metric:
    """Return a metric that only grows until what it counts begins anew; its name gets `_total`."""
    return _filled(CounterMetricFamily(name, meaning, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: "float | Mapping[Key, float]") -> Metric:
    # by labels as they are written: Prometheus refuses a reply with the same ones twice
    shown: dict[tuple[str, ...], float] = {}
    for key, value in ({(): values} if isinstance(values, float | int) else values).items():
        shown[tuple(map(label, (key,) if isinstance(key, str) else key))] = value
    for labels, value in shown.items():
        family.add_metric(labels, value)
    return family


class FewNames:
    """The first names that came, at most `most`; later ones share the label `(others)`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the label's value for a name."""
        if (known := self._names.get(name)) is not None:
            return known
        if len(self._names) >= self._most:
            return OTHERS
        self._names[name] = label(name)
        return self._names[name]


class _Families:
    """The part of a registry that is written."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(*families: Iterable[Metric]) -> str:
    """Return these metrics in the text format, with those of this process."""
    process = ProcessCollector(registry=None).collect()
    return generate_latest(_Families(chain(*families, process))).decode()
