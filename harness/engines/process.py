"""Starts an engine, waits until it serves, notices when it dies, stops it: one implementation for all kinds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from harness.engines import watchdog
from harness.engines.logtail import tail, telling_lines
from harness.engines.options import shown
from harness.engines.protocol import LaunchSpec
from harness.records.errors import InfrastructureError

HOST = "127.0.0.1"
POLL_S = 0.25
CALLS_FILE = "stand-in-calls.txt"
CALLS_VARIABLE = "SERVESCOPE_STAND_IN_CALLS"  # where a stand-in module records that it was called

Progress = Callable[[float, str], None]  # seconds since the start, last line of the log


def free_port() -> int:
    """A TCP port of loopback that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def check_port(port: int) -> None:
    """InfrastructureError if something listens on the port already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection's wait is no listener
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise InfrastructureError(
                f"port {port} on {HOST} is not free: {error.strerror}", mend="stop what listens there or choose another"
            ) from None


class EngineProcess:
    """One running engine: its own session, its log, and a watchdog that ends it should this process be killed."""

    def __init__(self, spec: LaunchSpec, port: int, log: Path, *, name: str = "engine") -> None:
        self.spec = spec
        self.port = port
        self.log = log
        self.name = name
        self.base_url = f"http://{HOST}:{port}"
        self.ready_s: float | None = None  # seconds from start to the first 200
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[str] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        if self._process is None:
            raise InfrastructureError(f"{self.name} was not started")
        return self._process.pid

    @property
    def calls_file(self) -> Path:
        """Where a stand-in module would have recorded a call; absent means that none was called."""
        return self.log.with_name(CALLS_FILE)

    def start(self) -> EngineProcess:
        """Start it and return at once. InfrastructureError if the port is taken or the program cannot be run."""
        check_port(self.port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, **self.spec.environ, CALLS_VARIABLE: str(self.calls_file.absolute())}
        environ["PYTHONUNBUFFERED"] = "1"  # else the last lines before a crash never reach the log
        environ["PYTHONSAFEPATH"] = "1"  # nor may a folder here be imported in place of the engine's own
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environ.pop(name, None)  # our environment must not leak into the engine's
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            with self.log.open("ab") as sink:
                sink.write(f"$ {shown(self.spec.argv)}\n".encode())
                sink.flush()
                self._process = subprocess.Popen(
                    self.spec.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=environ,
                    start_new_session=True,
                )
        except OSError as error:
            self._release_watchdog()
            raise InfrastructureError(
                f"{self.name} cannot be started: {self.spec.argv[0]}: {error.strerror}",
                mend="servescope engines doctor",
            ) from None
        self._tell_watchdog(str(self._process.pid))
        return self

    def wait_ready(self, progress: Progress | None = None) -> EngineProcess:
        """Wait for 200 on the ready path. InfrastructureError with the log's last lines if it dies or takes too long;
        whatever goes wrong, Ctrl-C included, nothing stays behind."""
        started = time.monotonic()
        try:
            while True:
                self._check_alive("died while loading")
                elapsed = time.monotonic() - started
                if self._answers():
                    self.ready_s = elapsed
                    return self
                if elapsed > self.spec.ready_s:
                    raise InfrastructureError(
                        f"{self.name} did not serve in {self.spec.ready_s:.0f} s; its log ends: {self.last_words()}",
                        mend=f"see {self.log}",
                    )
                if progress is not None:
                    progress(elapsed, (tail(self.log, 1) or [""])[-1])
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def poll(self) -> int | None:
        """The exit code if the engine has ended, else None."""
        return self._process.poll() if self._process is not None else None

    def watch(self, on_death: Callable[[int], None]) -> None:
        """Call `on_death(exit code)` from a thread when the engine ends without having been stopped."""
        process = self._process
        if process is None:
            raise InfrastructureError(f"{self.name} was not started")

        def wait() -> None:
            code = process.wait()
            if not self._stopping:
                on_death(code)

        threading.Thread(target=wait, name=f"watch-{self.name}", daemon=True).start()

    def last_words(self) -> str:
        """The lines of the log that say most about its end, in one."""
        return " | ".join(telling_lines(self.log)) or "nothing"

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM to the session, SIGKILL to what is left after `grace_s` seconds. Calling it again does nothing."""
        first, self._stopping = not self._stopping, True
        process = self._process
        if process is not None and first:
            # The leader alone: engines end their own children, and SGLang takes a child's death for a crash.
            if process.poll() is None:
                process.terminate()
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline:
                ended = process.poll()  # reaps the leader, so that it does not count as running
                if not watchdog.running(process.pid):
                    break
                if ended is not None and time.monotonic() > deadline - grace_s / 2:
                    break  # orphans that outlive their parent this long will not leave by themselves
                time.sleep(0.05)
            watchdog.signal_session(process.pid, signal.SIGKILL)
            process.wait()
        self._release_watchdog()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        """Whether the ready path answers 200; a fresh connection each time, since the server comes up meanwhile."""
        import httpx

        try:
            return httpx.get(self.base_url + self.spec.ready_path, timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _check_alive(self, what: str) -> None:
        code = self.poll()
        if code is None and self._process is not None:
            return
        raise InfrastructureError(
            f"{self.name} {what} ({ending(code)}); its log ends: {self.last_words()}", mend=f"see {self.log}"
        )

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            try:
                self._watchdog.stdin.write(line + "\n")
                self._watchdog.stdin.flush()
            except OSError:
                return  # the watchdog is gone; the engine can still be stopped by hand

    def _release_watchdog(self) -> None:
        dog, self._watchdog = self._watchdog, None
        if dog is None or dog.stdin is None:
            return
        try:
            dog.stdin.write("done\n")
            dog.stdin.close()
        except OSError:
            pass
        dog.wait()


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "not started"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
