"""The machine under a cell, once a second: cores, memory, and the process trees of client and engine."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa

from harness.records.tables import HOST

INTERVAL_S = 1.0
Row = tuple[str, str, str, float]  # scope, metric, labels, value

# Pressure and throttling of the control group, version 2 and 1: file -> the keys taken from it.
_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/cpu.stat"), ("nr_throttled", "throttled_usec", "usage_usec")),
    (Path("/sys/fs/cgroup/cpu/cpu.stat"), ("nr_throttled", "throttled_time")),
)
_PRESSURE = (Path("/proc/pressure/cpu"), Path("/proc/pressure/memory"))


class HostCollector:
    """Samples on a thread. `engine_pid`: the engine's first process, whose children are counted with it."""

    def __init__(self, engine_pid: int | None = None, interval_s: float = INTERVAL_S) -> None:
        self._roots = {"client": os.getpid()} | ({"engine": engine_pid} if engine_pid else {})
        self._engine_pid = engine_pid
        self._interval_s = interval_s
        # CPU of every process ever seen, so that a worker that ends does not take its seconds with it.
        self._cpu: dict[str, dict[tuple[int, float], float]] = {scope: {} for scope in self._roots}
        self._rows: list[tuple[int, Row]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="host", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def table(self) -> pa.Table:
        columns: dict[str, list[object]] = {name: [] for name in HOST.names}
        for t, row in self._rows:
            for name, cell in zip(HOST.names, (t, *row), strict=True):
                columns[name].append(cell)
        return pa.table(columns, schema=HOST)

    def _loop(self) -> None:
        """At start, at stop and on an absolute schedule in between, of which a late sample skips what it has passed."""
        due = time.monotonic()
        while not self._stop.is_set():
            self._take()
            due += self._interval_s * max(1, -(-(time.monotonic() - due) // self._interval_s))
            self._stop.wait(max(due - time.monotonic(), 0.0))
        self._take()

    def _take(self) -> None:
        t = time.monotonic_ns()
        self._rows += [(t, row) for row in self._sample()]

    def _sample(self) -> Iterator[Row]:
        for core, times in enumerate(psutil.cpu_times(percpu=True)):
            labels = _labels(core=str(core))
            for state in ("user", "system", "idle", "iowait", "steal"):
                yield "host", f"cpu_{state}_seconds_total", labels, float(getattr(times, state, 0.0))
        memory = psutil.virtual_memory()
        yield "host", "memory_available_bytes", "{}", float(memory.available)
        yield "host", "load1", "{}", os.getloadavg()[0]
        yield from _control_group()
        for scope, pid in self._roots.items():
            yield from self._tree(scope, pid)

    def _tree(self, scope: str, pid: int) -> Iterator[Row]:
        """A process and its children, added up; the engine is no part of the client that started it.

        CPU seconds cover what was seen: of a process that ends, those up to the last sample before.
        """
        cpu = self._cpu[scope]
        resident = threads = count = 0.0
        try:
            root = psutil.Process(pid)
            family = [root, *root.children(recursive=True)]
        except psutil.Error:
            return
        engine = _tree_pids(self._engine_pid) if scope == "client" and self._engine_pid else set()
        for process in family:
            if process.pid in engine:
                continue
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    cpu[process.pid, process.create_time()] = times.user + times.system
                    resident += process.memory_info().rss
                    threads += process.num_threads()
                    count += 1
            except psutil.Error:
                continue
        yield scope, "cpu_seconds_total", "{}", sum(cpu.values())
        yield scope, "resident_bytes", "{}", resident
        yield scope, "threads", "{}", threads
        yield scope, "processes", "{}", count


def _tree_pids(pid: int) -> set[int]:
    try:
        root = psutil.Process(pid)
        return {pid, *(child.pid for child in root.children(recursive=True))}
    except psutil.Error:
        return {pid}


def _control_group() -> Iterator[Row]:
    for path, keys in _CGROUP_FILES:
        for line in _lines(path):
            key, _, value = line.partition(" ")
            if key in keys:
                yield "host", f"cgroup_cpu_{key}", "{}", float(value)
    for path in _PRESSURE:
        for line in _lines(path):
            kind, *fields = line.split()
            total = next((field[6:] for field in fields if field.startswith("total=")), None)
            if total is not None:
                yield "host", f"pressure_{path.name}_{kind}_usec_total", "{}", float(total)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _labels(**labels: str) -> str:
    return json.dumps(labels, separators=(",", ":"), sort_keys=True)
