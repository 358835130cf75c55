"""The command line as people and jobs use it: in this process, or as one of its own where signals are part of it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.cli.__main__ import run
from harness.records.rundir import CellDir, RunDir

NATIVE = """
[[engine]]
name = "native"
kind = "native"
options = { profile = "vllm-0.32.0", block_size = 16, kv_tokens = 4096, max_model_len = 1024, threads = 1 }
"""
PREFIX_HIT = """
[[workload]]
name = "prefix-hit"
family = "prefix_hit"
load = { mode = "closed", in_flight = 2 }
[workload.params]
full = 2
partial = 2
miss = 2
groups = 2
prefix_tokens = 48
partial_share = 0.5
suffix_tokens = 8
output_tokens = 6
"""
MULTI_TURN = """
[[workload]]
name = "multi-turn"
family = "multi_turn"
load = { mode = "sessions", in_flight = 2 }
params = { sessions = 3, turns = 2, system_tokens = 32, user_tokens = 16, output_tokens = 6, answers = "scripted" }
"""
# Some minutes of work for one thread: whatever a test does to it happens in its midst.
ENDLESS = """
[[workload]]
name = "endless"
family = "prefix_hit"
load = { mode = "closed", in_flight = 2 }
params = { full = 200, partial = 200, miss = 200, prefix_tokens = 48, suffix_tokens = 8, output_tokens = 200 }
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says what was wrong. Progress before it is no part of it; a second one is a fault."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("servescope: error: ")]
        assert self.err.splitlines()[-1] == line
        assert "Traceback" not in self.err
        return line.removeprefix("servescope: error: ")


def servescope(*words: object) -> Ended:
    """Run a command in this process: the same code as the console script, without a second of imports."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    return Ended(code, out.getvalue(), err.getvalue())


def plan(folder: Path, *parts: str, run: str = "", model: str = "tiny") -> Path:
    """A plan file of engines and workloads. `run`: lines that replace or add to those of [run]."""
    lines = {"warmup_s": "0.2", "scrape_s": "0.2"} | dict(line.split(" = ", 1) for line in run.splitlines() if line)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.toml"
    head = f'schema = 1\nname = "small"\nmodel = "{model}"\n[run]\n'
    path.write_text(head + "".join(f"{key} = {value}\n" for key, value in lines.items()) + "".join(parts))
    return path


def behind(url: str, *, kind: str = "auto", key: str = "") -> str:
    """An [[engine]] that runs already. `key`: the name of the variable that holds its API key."""
    named = f'api_key_env = "{key}"\n' if key else ""
    return f'\n[[engine]]\nname = "behind"\nkind = "{kind}"\nurl = "{url}"\n{named}'


def the_run(out: Path) -> RunDir:
    """The only run below `out`."""
    (path,) = out.iterdir()
    return RunDir.open(path)


def the_cell(out: Path) -> CellDir:
    (cell,) = the_run(out).cells()
    return cell


class Running:
    """A command in a process of its own."""

    def __init__(self, folder: Path, *words: object, **environ: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.cli", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        self.children: list[psutil.Process] = []

    def until(self, true: Callable[[], bool], within_s: float = 60.0) -> None:
        """Wait while the command runs; AssertionError with what it said if it ends first or takes too long."""
        end = time.monotonic() + within_s
        while not true():
            said = self.stderr.read_text()
            assert self.process.poll() is None, f"it ended with {self.process.poll()}: {said}"
            assert time.monotonic() < end, f"not within {within_s} s: {said}"
            time.sleep(0.05)
        self.family()

    def family(self) -> list[psutil.Process]:
        """All processes below it, now and at earlier looks."""
        with contextlib.suppress(psutil.NoSuchProcess):
            new = psutil.Process(self.process.pid).children(recursive=True)
            self.children += [child for child in new if child not in self.children]
        return self.children

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, within_s: float = 60.0) -> Ended:
        code = self.process.wait(within_s)
        return Ended(code, self.stdout.read_text(), self.stderr.read_text())

    def orphans(self, within_s: float = 5.0) -> list[psutil.Process]:
        """What it started and is still there a moment after its end."""
        _, alive = psutil.wait_procs(self.children, timeout=within_s)
        return list(alive)


@contextlib.contextmanager
def running(folder: Path, *words: object, **environ: str) -> Iterator[Running]:
    """The command and all it started are gone at the end, whatever the test found."""
    command = Running(folder, *words, **environ)
    try:
        yield command
    finally:
        for process in command.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait(10)
