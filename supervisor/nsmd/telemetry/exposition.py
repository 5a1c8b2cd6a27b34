"""Metrics in Prometheus's format. HEAVY: imports `prometheus_client`, when first asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nsmd.telemetry.families import Family, Labels, Readings, Value
from nsmd.telemetry.histogram import Histogram


class _Read(Collector):
    """Figures for one answer."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        return (_metric(family, values) for family, values in self._readings.items())


def text_of(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """Format readings as text; takes some milliseconds, so call it in a thread.

    Args:
        accept: Accept header of a request, which selects the format.

    Returns:
        The text, and its content type.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Read(readings)), content_type


def _metric(family: Family, values: Mapping[Labels, Value]) -> Metric:
    labels = list(family.labels)
    match family.kind:
        case "counter":
            metric: Metric = CounterMetricFamily(family.name, family.help, labels=labels)
        case "gauge":
            metric = GaugeMetricFamily(family.name, family.help, labels=labels)
        case "histogram":
            metric = HistogramMetricFamily(family.name, family.help, labels=labels)
    for own, value in values.items():
        if isinstance(value, Histogram):
            assert isinstance(metric, HistogramMetricFamily), family.name
            metric.add_metric(own, buckets=list(_buckets(value)), sum_value=value.sum_s)
        else:
            assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily), family.name
            metric.add_metric(own, value)
    return metric


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    for bound, count in histogram.shown():
        yield repr(bound), count
    yield "+Inf", histogram.count
