"""The machine under a cell: whose CPU is whose, and counters that never fall."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from harness.observe import host as module
from harness.observe.host import HostCollector
from harness.records.tables import HOST

BURN = "import time\nwhile time.process_time() < {seconds} + 0.03: pass\ntime.sleep(30)"
Series = dict[tuple[str, str], list[tuple[int, float]]]


@contextmanager
def burning(seconds: float) -> Iterator[int]:
    """A child process that has used `seconds` of CPU, as the kernel counts it: in ticks, so it burns a few more."""
    child = subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=seconds + 0.05)])
    try:
        process = psutil.Process(child.pid)
        for _ in range(400):
            times = process.cpu_times()
            if times.user + times.system >= seconds:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the child got no CPU in twenty seconds")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def series_of(collector: HostCollector) -> Series:
    found: Series = defaultdict(list)
    for row in collector.table().to_pylist():
        found[row["scope"], row["metric"]].append((row["t"], row["value"]))
    return found


def test_an_engine_is_no_part_of_the_client_that_started_it() -> None:
    with burning(0.4) as pid:
        collector = HostCollector(engine_pid=pid, interval_s=0.1)
        collector.start()
        time.sleep(0.35)
        collector.stop()
        own = psutil.Process(os.getpid()).cpu_times()
        others = [one for one in psutil.Process().children(recursive=True) if one.pid != pid]
    found = series_of(collector)
    engine, client = found["engine", "cpu_seconds_total"], found["client", "cpu_seconds_total"]
    assert engine[-1][1] >= 0.4
    assert found["engine", "processes"][-1][1] == 1
    assert found["client", "processes"][-1][1] == 1 + len(others)
    if not others:
        assert client[-1][1] <= own.user + own.system + 0.05
    assert found["engine", "resident_bytes"][-1][1] > 1e6


def test_without_an_engine_of_ours_a_child_is_the_client() -> None:
    with burning(0.3):
        collector = HostCollector(interval_s=0.1)
        before = sum(psutil.Process().cpu_times()[:2])
        collector.start()
        time.sleep(0.25)
        collector.stop()
    found = series_of(collector)
    assert ("engine", "cpu_seconds_total") not in found
    assert found["client", "cpu_seconds_total"][-1][1] >= before + 0.3


def test_a_process_that_ends_keeps_its_seconds() -> None:
    """A worker that finished would take its CPU with it, and the counter would look like a restart."""
    collector = HostCollector(interval_s=0.05)
    with burning(0.4):
        collector.start()
        time.sleep(0.3)
    time.sleep(0.3)
    collector.stop()
    found = series_of(collector)
    processes = [value for _, value in found["client", "processes"]]
    assert processes[0] > processes[-1]
    cpu = [value for _, value in found["client", "cpu_seconds_total"]]
    assert all(b >= a for a, b in pairwise(cpu))


def test_an_engine_that_is_gone_ends_its_rows_and_nothing_else() -> None:
    with burning(0.05) as pid:
        collector = HostCollector(engine_pid=pid, interval_s=0.05)
        collector.start()
        time.sleep(0.2)
    time.sleep(0.3)
    collector.stop()
    found = series_of(collector)
    assert found["engine", "threads"][-1][0] < found["host", "load1"][-1][0]


def test_cores_and_memory_of_the_machine() -> None:
    collector = HostCollector(interval_s=0.05)
    collector.start()
    time.sleep(0.12)
    collector.stop()
    table = collector.table()
    assert table.schema.equals(HOST)
    rows = [row for row in table.to_pylist() if row["scope"] == "host"]
    cores = {row["labels"] for row in rows if row["metric"] == "cpu_idle_seconds_total"}
    assert len(cores) == psutil.cpu_count()
    memory = [row["value"] for row in rows if row["metric"] == "memory_available_bytes"]
    assert all(0 < value <= psutil.virtual_memory().total for value in memory)


def test_a_short_cell_has_a_sample_at_either_end() -> None:
    """Half a second is less than the interval, and nothing can be said of one sample."""
    collector = HostCollector()
    began = time.monotonic_ns()
    collector.start()
    time.sleep(0.5)
    ended = time.monotonic_ns()
    collector.stop()
    times = [t for t, _ in series_of(collector)["client", "cpu_seconds_total"]]
    assert began <= times[0] < ended <= times[-1]


def test_a_late_sample_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    def slow(_: HostCollector) -> Iterator[module.Row]:
        taken.append(time.monotonic())
        time.sleep(0.35 if len(taken) == 1 else 0.0)
        yield "host", "load1", "{}", 0.0

    monkeypatch.setattr(HostCollector, "_sample", slow)
    collector = HostCollector(interval_s=0.1)
    collector.start()
    time.sleep(0.9)
    collector.stop()
    assert all(b - a > 0.05 for a, b in pairwise(taken[:-1]))  # the last one is that of stop


CPU_STAT_V2 = "usage_usec 5000000\nnr_periods 90\nnr_throttled 7\nthrottled_usec 123456\n"
PRESSURE = "some avg10=1.50 avg60=0.70 avg300=0.20 total=98765\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=43\n"


def test_throttling_and_pressure_of_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, pressure = tmp_path / "cpu.stat", tmp_path / "cpu"
    stat.write_text(CPU_STAT_V2)
    pressure.write_text(PRESSURE)
    keys = module._CGROUP_FILES[0][1]
    monkeypatch.setattr(module, "_CGROUP_FILES", ((stat, keys), (tmp_path / "absent", keys)))
    monkeypatch.setattr(module, "_PRESSURE", (pressure, tmp_path / "absent"))
    found = {metric: value for _, metric, _, value in module._control_group()}
    assert found == {
        "cgroup_cpu_usage_usec": 5_000_000.0,
        "cgroup_cpu_nr_throttled": 7.0,
        "cgroup_cpu_throttled_usec": 123_456.0,
        "pressure_cpu_some_usec_total": 98_765.0,
        "pressure_cpu_full_usec_total": 43.0,
    }


def test_throttling_of_a_first_version_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text("nr_periods 90\nnr_throttled 7\nthrottled_time 123456789\n")
    monkeypatch.setattr(module, "_CGROUP_FILES", ((stat, module._CGROUP_FILES[1][1]),))
    monkeypatch.setattr(module, "_PRESSURE", ())
    found = {metric: value for _, metric, _, value in module._control_group()}
    assert found == {"cgroup_cpu_nr_throttled": 7.0, "cgroup_cpu_throttled_time": 123_456_789.0}
