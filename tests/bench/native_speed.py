"""How fast is the native core's model, alone and beside a busy neighbour, and how fast is vLLM on the same machine?

    python -m tests.bench.native_speed [--model smollm2-135m] [--threads 2] [--repeats 5] [--neighbour] [--vllm ENV]

Not part of the test run: its figures depend on what else the machine does, so the load average is printed with them.
Prints one JSON object: per case the median over the repeats with the least and the most, in ms per step (every stream
gets a token a step, so this is TPOT without HTTP) and in prompt tokens per second. Engines are measured in turns
within one repeat, so that a change of the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil

from harness.engines.store import find_engine
from harness.models.store import find_model
from native_core.engine import Engine, EngineConfig
from native_core.numpy_executor import NumpyExecutor
from native_core.request import Request

DRIVER = Path(__file__).with_name("vllm_speed_driver.py")
PROMPT, ANSWER, LONG = 128, 33, 1024  # tokens: prompt and answer of a stream, prompt of the prefill case
STREAMS = (1, 8)
Measure = Callable[[list[list[int]], int], tuple[float, float]]


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """No two alike, so that no prefix is found in a cache."""
    rng = np.random.default_rng([seed, count, tokens])
    return [rng.integers(1000, 40_000, tokens).tolist() for _ in range(count)]


class Native:
    def __init__(self, model: Path, threads: int) -> None:
        settings = EngineConfig(num_blocks=520, block_size=32, prefix_caching=False)
        self.executor = NumpyExecutor(model, threads=threads)
        self.engine = Engine(settings, self.executor)

    def __call__(self, given: list[list[int]], tokens: int) -> tuple[float, float]:
        """Seconds until every prompt has its first token, and from there to the end."""
        for index, prompt in enumerate(given):
            self.engine.add(Request(str(index), prompt, tokens, ignore_eos=True))
        first: set[str] = set()
        began = middle = time.perf_counter()
        while self.engine.has_work:
            for output in self.engine.step():
                if output.token is not None and output.request_id not in first:
                    first.add(output.request_id)
                    middle = time.perf_counter()
        return middle - began, time.perf_counter() - middle


class Vllm:
    """Its offline engine in a process of its own, answering one line of JSON per measurement."""

    def __init__(self, environment: str, model: Path) -> None:
        argv = [find_engine(environment).python, str(DRIVER), str(model)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def __call__(self, given: list[list[int]], tokens: int) -> tuple[float, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": given, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        first, rest = self._answer()
        return first, rest

    def _answer(self) -> list[float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("measured "):
                return list(json.loads(line.removeprefix("measured ")))
        raise SystemExit(f"vLLM ended with exit code {self.process.wait()}")

    def close(self) -> None:
        self.process.communicate()


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """A process that keeps one core busy, as a load generator would."""
    if not wanted:
        yield
        return
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spin.kill()
        spin.wait()


def cases(measure: Measure, repeat: int) -> Iterator[tuple[str, float]]:
    for streams in STREAMS:
        _, rest = measure(prompts(streams, PROMPT, repeat), ANSWER)
        yield f"ms_per_step_at_{streams}", 1e3 * rest / (ANSWER - 1)
    first, _ = measure(prompts(1, LONG, repeat), 1)
    yield "prefill_tokens_per_s", LONG / first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--neighbour", action="store_true", help="with one core kept busy by another process")
    parser.add_argument("--vllm", metavar="ENV", help="a row of `servescope engines list`")
    options = parser.parse_args()
    model, load = find_model(options.model).path, os.getloadavg()[0]
    with ExitStack() as stack:
        engines: dict[str, Measure] = {}
        before = psutil.Process().memory_info().rss
        engines["native"] = Native(model, options.threads)
        resident = psutil.Process().memory_info().rss - before
        if options.vllm:
            vllm = Vllm(options.vllm, model)
            stack.callback(vllm.close)
            engines["vllm"] = vllm
        for measure in engines.values():
            dict(cases(measure, options.repeats))  # warm-up, with prompts of its own
        stack.enter_context(neighbour(options.neighbour))
        found: dict[str, list[float]] = {}
        for repeat in range(options.repeats):
            for name, measure in engines.items():
                for case, value in cases(measure, repeat):
                    found.setdefault(f"{name}.{case}", []).append(value)
    rows = {
        case: {
            "median": round(statistics.median(values), 2),
            "least": round(min(values), 2),
            "most": round(max(values), 2),
        }
        for case, values in found.items()
    }
    facts = {"threads": options.threads, "neighbour": options.neighbour, "load_before": load, "cpus": os.cpu_count()}
    print(json.dumps({**facts, "native_resident_mb_after_loading": round(resident / 1e6), **rows}, indent=2))


if __name__ == "__main__":
    main()
