"""Starting, waiting, dying, stopping: with real processes, small ones."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.engines.logtail import telling_lines
from harness.engines.process import CALLS_VARIABLE, EngineProcess, check_port, free_port
from harness.engines.protocol import LaunchSpec
from harness.engines.watchdog import running
from harness.records.errors import InfrastructureError

SERVER = textwrap.dedent(
    """
    import http.server, os, subprocess, sys, time
    port, delay = int(sys.argv[1]), float(sys.argv[2])
    if "child" in sys.argv:
        code = "import os, time; os.setpgid(0, 0); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code])
        print("child", child.pid, flush=True)
    if "stubborn" in sys.argv:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(delay)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/ready" else 404)
            self.send_header("content-length", "0")
            self.end_headers()
        def log_message(self, *a): pass
    print("calls file", os.environ.get("SERVESCOPE_STAND_IN_CALLS"), flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    """
)


def spec(code: str, *argv: str, ready_s: float = 10.0, **environ: str) -> LaunchSpec:
    return LaunchSpec(argv=(sys.executable, "-c", code, *argv), environ=environ, ready_path="/ready", ready_s=ready_s)


def gone(pid: int, within_s: float = 5.0) -> bool:
    return until(lambda: not alive(pid), within_s)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def child_in(log: Path) -> int:
    found = re.search(r"^child (\d+)$", log.read_text(), re.MULTILINE)
    assert found
    return int(found.group(1))


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_start_wait_stop_and_stop_again(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "cell" / "engine.log"
    heard: list[float] = []
    with EngineProcess(spec(SERVER, str(port), "0.3"), port, log) as engine:
        engine.start().wait_ready(lambda elapsed, line: heard.append(elapsed))
        assert engine.ready_s is not None
        assert engine.ready_s >= 0.2
        assert heard == sorted(heard)
        assert heard
        assert engine.poll() is None
        pid = engine.pid
    assert gone(pid)
    engine.stop()
    text = log.read_text()
    assert text.startswith("$ ")  # the command that was run
    assert f"calls file {engine.calls_file}" in text
    assert engine.calls_file.parent == log.parent
    assert not engine.calls_file.exists()


def test_grandchildren_outside_the_group_go_too(tmp_path: Path) -> None:
    port = free_port()
    engine = EngineProcess(spec(SERVER, str(port), "0", "child"), port, tmp_path / "engine.log").start()
    engine.wait_ready()
    child = child_in(tmp_path / "engine.log")
    assert alive(child)
    engine.stop(grace_s=0.5)
    assert gone(child)
    assert running(engine.pid) == []


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    port = free_port()
    engine = EngineProcess(spec(SERVER, str(port), "0", "stubborn"), port, tmp_path / "engine.log").start()
    engine.wait_ready()
    engine.stop(grace_s=0.3)
    assert engine.poll() == -signal.SIGKILL


def test_dying_while_loading_gives_the_cause_and_not_the_wrapper(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "print('loading weights')\n"
        "print('Traceback (most recent call last):\\n  File \"x.py\", line 1')\n"
        "print('ValueError: no available memory for the cache blocks')\n"
        "print('RuntimeError: Engine core initialization failed. See root cause above.')\n"
        "sys.exit(3)"
    )
    port = free_port()
    engine = EngineProcess(spec(code), port, tmp_path / "engine.log", name="vllm").start()
    with pytest.raises(InfrastructureError) as caught:
        engine.wait_ready()
    line = str(caught.value)
    assert caught.value.exit_code == 5
    assert "vllm died while loading (exit code 3)" in line
    assert "no available memory for the cache blocks" in line
    assert "Engine core initialization failed" not in line
    assert "\n" not in line


def test_a_cause_is_told_once_without_what_loggers_put_before_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(APIServer pid=1) WARNING 12-01 01:13:21 [x.py:2] this can cause errors like `OSError: [Errno 24] Too many`\n"
        "(EngineCore pid=2) ERROR 12-01 01:13:43 [core.py:1510] ValueError: the pool is too small\n"
        "ValueError: the pool is too small\n"
        "\x1b[31m[2026-12-01 01:13:44] Scheduler hit an exception: RuntimeError: no such device\x1b[0m\n"
    )
    assert telling_lines(log) == [
        "ValueError: the pool is too small",
        "Scheduler hit an exception: RuntimeError: no such device",
    ]
    assert telling_lines(tmp_path / "absent") == []


def test_without_any_cause_the_last_lines_are_shown(tmp_path: Path) -> None:
    engine = EngineProcess(spec("print('one'); print('two'); raise SystemExit(1)"), free_port(), tmp_path / "e.log")
    with pytest.raises(InfrastructureError, match=r"one \| two"):
        engine.start().wait_ready()


def test_one_that_never_serves_is_stopped(tmp_path: Path) -> None:
    engine = EngineProcess(spec("import time; time.sleep(60)", ready_s=0.4), free_port(), tmp_path / "e.log").start()
    with pytest.raises(InfrastructureError, match="did not serve in 0 s"):
        engine.wait_ready()
    assert gone(engine.pid)


def test_interrupted_while_waiting_leaves_nothing(tmp_path: Path) -> None:
    engine = EngineProcess(spec("import time; time.sleep(60)"), free_port(), tmp_path / "e.log").start()

    def interrupt(elapsed: float, line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.wait_ready(interrupt)
    assert gone(engine.pid)


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"port {port} .* is not free"):
            EngineProcess(spec("pass"), port, tmp_path / "e.log").start()
    check_port(port)
    assert not (tmp_path / "e.log").exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    missing = LaunchSpec(argv=("/no/such/python", "-m", "x"), environ={}, ready_path="/", ready_s=1)
    with pytest.raises(InfrastructureError, match=r"/no/such/python: No such file"):
        EngineProcess(missing, free_port(), tmp_path / "e.log").start()


def test_death_during_a_run_is_noticed_and_a_stop_is_not_one(tmp_path: Path) -> None:
    deaths: list[int] = []
    noticed = threading.Event()

    def note(code: int) -> None:
        deaths.append(code)
        noticed.set()

    port = free_port()
    engine = EngineProcess(spec(SERVER, str(port), "0"), port, tmp_path / "a.log").start().wait_ready()
    engine.watch(note)
    os.kill(engine.pid, signal.SIGKILL)
    assert noticed.wait(5)
    assert deaths == [-signal.SIGKILL]
    engine.stop()

    port = free_port()
    other = EngineProcess(spec(SERVER, str(port), "0"), port, tmp_path / "b.log").start().wait_ready()
    other.watch(note)
    other.stop()
    time.sleep(0.1)
    assert deaths == [-signal.SIGKILL]


def test_no_orphan_survives_a_killed_parent(tmp_path: Path) -> None:
    port = free_port()
    parent_code = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from harness.engines.process import EngineProcess
        from harness.engines.protocol import LaunchSpec
        argv = (sys.executable, "-c", {SERVER!r}, "{port}", "0", "child")
        spec = LaunchSpec(argv=argv, environ={{}}, ready_path="/ready", ready_s=10)
        engine = EngineProcess(spec, {port}, Path({str(tmp_path / "engine.log")!r})).start().wait_ready()
        print(engine.pid, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            child = child_in(tmp_path / "engine.log")
            assert alive(pid)
            assert alive(child)
        finally:
            parent.kill()
        assert gone(pid)
        assert gone(child)


def test_our_environment_does_not_leak_into_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    code = "import os, sys; print(os.environ.get('PYTHONPATH'), os.environ['MINE'], sys.path[0] == ''); sys.exit(1)"
    engine = EngineProcess(spec(code, MINE="yes"), free_port(), tmp_path / "e.log")
    with pytest.raises(InfrastructureError):
        engine.start().wait_ready()
    assert (tmp_path / "e.log").read_text().splitlines()[-1] == "None yes False"
    assert CALLS_VARIABLE not in os.environ
