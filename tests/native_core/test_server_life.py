"""Clients that go, queues that are full, servers that do not start: with a paced virtual executor or real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.models.store import get_model
from native_core.__main__ import main
from native_core.executor import Executor, StepResult, Work
from native_core.virtual import VirtualExecutor
from tests.native_core.served import Paced, Under, serving

PROMPT = list(range(10, 50))
LONG = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def tiny() -> Path:
    return get_model("tiny").path


def paced(model: Path, threads: int) -> Executor:
    return Paced(VirtualExecutor(vocab_size=256), 0.005)


@pytest.fixture(scope="module")
def slow(tiny: Path) -> Iterator[Under]:
    flags = ("--kv-tokens", "2048", "--max-model-len", "512", "--max-num-seqs", "2", "--max-waiting", "2")
    with serving(tiny, *flags, make_executor=paced) as under:
        yield under


def test_a_client_that_goes_away_is_aborted_and_its_blocks_are_free(slow: Under) -> None:
    before = slow.metrics()
    with slow.client.stream("POST", "/v1/completions", json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        assert slow.metrics()["native:kv_used_tokens"] > 0
        assert slow.metrics()["native:num_requests_running"] == 1
    slow.wait_for("native:num_requests_running", 0)
    slow.wait_for("native:kv_used_tokens", 0)
    after = slow.metrics()
    aborted = 'native:requests_finished_total{reason="abort"}'
    assert after[aborted] - before[aborted] == 1
    assert after["native:generation_tokens_total"] - before["native:generation_tokens_total"] < 200
    assert after["native:e2e_seconds_count"] == before["native:e2e_seconds_count"]
    slow.instance.runner._engine.scheduler.check()


def test_a_client_that_waits_for_a_document_and_goes_is_aborted_too(slow: Under) -> None:
    before = slow.metrics()['native:requests_finished_total{reason="abort"}']
    with pytest.raises(httpx.ReadTimeout):
        slow.client.post("/v1/completions", json={**LONG, "stream": False, "n": 2, "temperature": 1}, timeout=0.1)
    slow.wait_for('native:requests_finished_total{reason="abort"}', before + 2)
    slow.wait_for("native:kv_used_tokens", 0)


def test_a_cache_in_use_is_not_reset(slow: Under) -> None:
    with slow.client.stream("POST", "/v1/completions", json=LONG) as response:
        lines = response.iter_lines()  # kept: a generator that is dropped closes the response
        next(lines)
        assert slow.client.post("/reset_prefix_cache").json() == {"success": False}
    slow.wait_for("native:kv_used_tokens", 0)
    assert slow.client.post("/reset_prefix_cache").json() == {"success": True}


def test_a_full_queue_answers_503_with_retry_after(slow: Under) -> None:
    before = slow.metrics()['native:request_rejections_total{reason="queue_full"}']
    streams = [slow.client.stream("POST", "/v1/completions", json=LONG) for _ in range(4)]
    opened = []
    try:
        for at, stream in enumerate(streams):
            opened.append(stream.__enter__())
            slow.wait_for("native:num_requests_running", min(at + 1, 2))
        slow.wait_for("native:num_requests_waiting", 2)
        response = slow.complete(prompt=PROMPT)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    finally:
        for stream in streams[: len(opened)]:
            stream.__exit__(None, None, None)
    assert slow.metrics()['native:request_rejections_total{reason="queue_full"}'] == before + 1
    slow.wait_for("native:kv_used_tokens", 0)


def test_a_batch_that_does_not_fit_the_queue_is_refused_whole(slow: Under) -> None:
    slow.wait_for("native:num_requests_running", 0)
    response = slow.complete(prompt=[PROMPT] * 5)
    assert response.status_code == 503
    slow.wait_for("native:num_requests_waiting", 0)
    slow.wait_for("native:kv_used_tokens", 0)


def test_streams_side_by_side_each_get_their_own_tokens(slow: Under) -> None:
    alone = {
        length: slow.complete(prompt=PROMPT[:length], max_tokens=12, ignore_eos=True, return_token_ids=True).json()
        for length in (5, 9, 20)
    }
    found: dict[int, Any] = {}

    def run(length: int) -> None:
        body = {"prompt": PROMPT[:length], "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
        found[length] = slow.events(**body)

    threads = [threading.Thread(target=run, args=(length,)) for length in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for length, document in alone.items():
        ids = [token for event in found[length] for token in event["choices"][0]["token_ids"]]
        assert ids == document["choices"][0]["token_ids"]


def test_preempted_answers_are_whole_billed_once_and_say_so(tiny: Path) -> None:
    """A pool for two and a half of eight requests: they throw each other out, and nobody can tell but by the figure."""
    flags = ("--kv-tokens", "160", "--block-size", "8", "--max-model-len", "64", "--no-prefix-caching")
    bodies = [
        {"prompt": [at + 20, *PROMPT[:15]], "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
        for at in range(8)
    ]
    options = {"include_usage": True}
    with serving(tiny, *flags, make_executor=paced) as under:
        alone = [under.complete(**body).json()["choices"][0]["token_ids"] for body in bodies]
        before = under.metrics()
        found: dict[int, Any] = {}
        threads = [
            threading.Thread(
                target=lambda at: found.update({at: under.events(**bodies[at], stream_options=options)}), args=(at,)
            )
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = under.metrics()
    for at, ids in enumerate(alone):
        assert [token for event in found[at][:-1] for token in event["choices"][0]["token_ids"]] == ids
    closings = [found[at][-1] for at in range(8)]
    thrown_out = sum(closing["metrics"]["preemptions"] for closing in closings)
    assert thrown_out == after["native:preemptions_total"] - before["native:preemptions_total"] > 0
    for name, field in (("prompt", "prompt_tokens"), ("generation", "completion_tokens")):
        grown = after[f"native:{name}_tokens_total"] - before[f"native:{name}_tokens_total"]
        assert grown == sum(closing["usage"][field] for closing in closings)


class Breaking(Paced):
    """Fails at its third step."""

    steps = 0

    def execute(self, work: Sequence[Work]) -> StepResult:
        self.steps += 1
        if self.steps == 3:
            raise FloatingPointError("not a number")
        return super().execute(work)


def test_a_dead_engine_says_so_in_the_stream_and_ends_the_server(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(model: Path, threads: int) -> Executor:
        return Breaking(VirtualExecutor(vocab_size=256), 0.0)

    with serving(tiny, "--max-model-len", "512", make_executor=breaking) as under:
        with under.client.stream("POST", "/v1/completions", json=LONG) as response:
            events = [line for line in response.iter_lines() if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert len(events) == 3  # two tokens before it
        assert isinstance(under.instance.runner.failure, FloatingPointError)
    assert "the engine died: FloatingPointError" in capsys.readouterr().err


def test_priority_is_taken_by_a_server_that_knows_it(tiny: Path) -> None:
    with serving(tiny, "--policy", "priority", "--max-model-len", "256", make_executor=paced) as under:
        assert under.complete(prompt=PROMPT, max_tokens=2, priority=-3).status_code == 200


# Start and end


Fails = Callable[..., tuple[int, str]]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a server that must not start: its exit code and what it says on standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return run


def test_a_process_says_when_it_is_ready_and_ends_on_a_signal(tiny: Path) -> None:
    command = (
        sys.executable, "-m", "native_core", "--model", str(tiny), "--served-model-name", "tiny",
        "--port", "0", "--threads", "1", "--max-model-len", "256",
        "--kv-tokens", "512", "--log-steps",
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("native core ready on http://127.0.0.1:")
        url = line.split()[4]
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert err == ""
    steps = [row for row in out.splitlines() if row.startswith("step ")]
    assert [row.split()[3:6:2] for row in steps] == [["40", "0"], ["0", "1"], ["0", "1"]]


def test_a_used_port_is_one_line_and_exit_code_5(tiny: Path, fails: Fails) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, err = fails("--model", str(tiny), "--port", str(taken.getsockname()[1]))
    assert code == 5
    assert err.count("\n") == 1
    assert "cannot listen on 127.0.0.1" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-tokens", "100", "--max-model-len", "200"), "cannot hold one request"),
        (("--max-model-len", "99999999"), "beyond the model's context"),
        (("--profile", "vllm-9.9.9"), "vllm-9.9.9"),
        (("--block-size", "0"), "--block-size"),
        (("--port", "70000"), "70000"),
        (("--policy", "luck"), "--policy"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(
    tiny: Path, fails: Fails, flags: tuple[str, ...], words: str
) -> None:
    code, err = fails("--model", str(tiny), "--port", "0", *flags)
    assert code == 2
    assert err.count("\n") == 1
    assert words in err


def test_a_model_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path, fails: Fails) -> None:
    code, err = fails("--model", str(tmp_path), "--port", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "config.json" in err
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    code, err = fails("--model", str(tmp_path), "--port", "0")
    assert (code, err.count("\n")) == (2, 1)
