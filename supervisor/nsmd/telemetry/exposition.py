"""Metrics in Prometheus's format, and those of the supervisor's own process. HEAVY: imports
`prometheus_client`, when first asked.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nsmd.host.processes import share_of, stat_fields
from nsmd.telemetry.counts import FAMILIES, Family, Histogram, Labels, Readings, Value


class _Read(Collector):
    """Figures for one answer."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        return (_metric(FAMILIES[name], values) for name, values in self._readings.items())


def text_of(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """Format readings as text, in the format that an Accept header selects; takes some
    milliseconds, so call it in a thread. Returns the text, and its content type.
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


def process_readings(templates: Iterable[int] = ()) -> Readings:
    """Read what the system says of the supervisor's own process: proc_pid_stat(5), and getrusage(2)
    for more precise values; and the memory of templates. Call it in a thread: with ten thousand
    descriptors it takes milliseconds.
    """
    _, fields = stat_fields("self")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    started_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
    return {
        "nsm_template_memory_bytes": {(): sum(share_of(pid) or 0 for pid in templates)},
        "process_cpu_seconds": {(): usage.ru_utime + usage.ru_stime},
        "process_resident_memory_bytes": {(): int(fields[21]) * os.sysconf("SC_PAGE_SIZE")},
        "process_virtual_memory_bytes": {(): int(fields[20])},
        "process_start_time_seconds": {(): started_at},
        "process_open_fds": {
            (): len(os.listdir("/proc/self/fd")) - 1
        },  # without that of the listing
        "process_max_fds": {(): resource.getrlimit(resource.RLIMIT_NOFILE)[0]},
    }
