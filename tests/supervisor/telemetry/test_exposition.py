"""The text that Prometheus reads, read again by Prometheus' own parsers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from control_bench import bench
from nsm._version import __version__
from nsmd.telemetry.counts import FAMILIES, Histogram
from nsmd.telemetry.exposition import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from nsmd.telemetry.counts import Readings

    Parse = Callable[[str], Iterable[Metric]]


def parse_openmetrics(text: str) -> Iterable[Metric]:
    """Parse with Prometheus' own parser, which does not declare what it takes."""
    parse: Parse = cast("Any", openmetrics).text_string_to_metric_families
    return parse(text)


OPENMETRICS = "application/openmetrics-text; version=1.0.0"
AWKWARD = 'a"b\\c\nd é'


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in metrics
        for sample in metric.samples
    }


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "open"]
)
def test_values_and_labels_come_through(accept: str, parse: Parse) -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.2, 7000):
        histogram.add(seconds)
    readings: Readings = {
        "nsm_executions": {(AWKWARD, "ok"): 3},
        "nsm_templates": {(): 2},
        "nsm_execution_wait_seconds": {("python",): histogram},
    }
    text, content_type = text_of(readings, accept)
    assert ("openmetrics" in content_type) == bool(accept)
    found = samples(parse(text.decode()))
    assert found["nsm_executions_total", frozenset({("env", AWKWARD), ("outcome", "ok")})] == 3
    assert found["nsm_templates", frozenset()] == 2
    name, env = "nsm_execution_wait_seconds", ("env", "python")
    assert found[f"{name}_count", frozenset({env})] == 3
    assert found[f"{name}_sum", frozenset({env})] == pytest.approx(7000.2001)
    counts = {dict(labels)["le"]: n for (of, labels), n in found.items() if of == f"{name}_bucket"}
    assert counts["0.0001"] == 1
    assert (counts["0.1"], counts["0.25"]) == (1, 2)
    assert (counts["5000.0"], counts["+Inf"]) == (2, 3)


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "open"]
)
async def test_every_metric_of_the_table_is_told_and_none_else(accept: str, parse: Parse) -> None:
    async with bench() as it:
        peer = await it.connect()
        await peer.call("run", env="python", session="a", code="1")
        text, _ = await it.telemetry.text(accept)
    metrics = list(parse(text.decode()))
    assert [(metric.name, metric.type, metric.documentation) for metric in metrics] == (
        [(family.name, family.kind, family.help) for family in FAMILIES.values()]
    )
    names = {family.name: set(family.labels) for family in FAMILIES.values()}
    for metric in metrics:
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} == names[metric.name], sample
    info = samples(metrics)
    assert {dict(labels)["version"] for name, labels in info if name == "nsm_build_info"} == (
        {__version__}
    )


async def test_the_metrics_of_the_process_are_those_of_proc() -> None:
    async with bench() as it:
        text, _ = await it.telemetry.text()
    found = {name: value for (name, _), value in samples(parse_text(text.decode())).items()}
    assert found["process_max_fds"] >= found["process_open_fds"] > 2
    assert found["process_virtual_memory_bytes"] > found["process_resident_memory_bytes"] > 1e6
    assert found["process_cpu_seconds_total"] > 0
    assert abs(found["process_start_time_seconds"] - _started_at()) < 2


def _started_at() -> float:
    """By another way: ps(1)'s, which has the boot's time from the kernel."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    (boot,) = re.findall(r"btime (\d+)", Path("/proc/stat").read_text())
    import os

    return int(boot) + int(stat[19]) / os.sysconf("SC_CLK_TCK")
