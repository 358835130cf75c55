"""Whatever is given wrongly: one line with the mend, the right exit code, and nothing started."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.cli.jobs import session
from harness.engines.process import free_port
from harness.models.store import find_model
from tests.cli.driving import NATIVE, PREFIX_HIT, behind, plan, running, servescope
from tests.cli.scripted_server import scripted, web_server

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_unknown_plan_key(tmp_path: Path) -> None:
    file = plan(tmp_path, NATIVE, PREFIX_HIT, run="warmup = 3")
    ended = servescope("run", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert str(file) in ended.error
    assert "warmup" in ended.error
    assert "warmup_s" in ended.error  # the mend
    assert not (tmp_path / "out").exists()


def test_plan_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    assert servescope("run", tmp_path / "none.toml").code == 2
    broken = tmp_path / "broken.toml"
    broken.write_text("schema = ")
    ended = servescope("run", broken)
    assert ended.code == 2
    assert str(broken) in ended.error


def test_foreign_schema_of_a_plan(tmp_path: Path) -> None:
    file = plan(tmp_path, NATIVE, PREFIX_HIT)
    file.write_text(file.read_text().replace("schema = 1", "schema = 99"))
    ended = servescope("run", file)
    assert ended.code == 2
    assert "schema" in ended.error
    assert "99" in ended.error


def test_foreign_schema_of_a_workload_file(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl.gz"
    assert servescope("workload", "make", "prefix_hit", "-o", file, "--model", "tiny").code == 0
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    header = json.loads(lines[0])
    header["schema"] = 99
    file.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + b"".join(lines[1:])))
    ended = servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT), "--workload", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert str(file) in ended.error
    assert "99" in ended.error


def test_unknown_engine_workload_option(tmp_path: Path) -> None:
    file = plan(tmp_path, NATIVE, PREFIX_HIT)
    for words, named in (
        (("--engine", "natve"), "natve"),
        (("--workload", "prefix"), "prefix-hit"),
        (("--repeat", "2"), "--repeats"),
        (("--repeats", "0"), "--repeats"),
    ):
        ended = servescope("run", file, "--out", tmp_path / "out", *words)
        assert ended.code == 2
        assert named in ended.error
    assert not (tmp_path / "out").exists()


def test_model_that_is_missing(tmp_path: Path) -> None:
    """The tests' own cache has only `tiny`."""
    ended = servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT, model="smollm2-135m"), "--out", tmp_path / "out")
    assert ended.code == 2
    assert "servescope model get smollm2-135m" in ended.error
    assert servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT, model="./nothing")).code == 2


def test_environment_that_is_missing(tmp_path: Path) -> None:
    engine = '\n[[engine]]\nname = "v"\nkind = "vllm"\nenv = "vllm-9-cpu"\n'
    ended = servescope("run", plan(tmp_path, engine, PREFIX_HIT), "--out", tmp_path / "out")
    assert ended.code == 2
    assert "servescope engines install vllm --device cpu" in ended.error


def test_a_key_that_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with scripted() as server:
        file = plan(tmp_path, behind(server.url, key="NO_SUCH_KEY"), PREFIX_HIT)
        ended = servescope("run", file, "--out", tmp_path / "out")
        assert not server.keys
    assert ended.code == 2
    assert "export NO_SUCH_KEY" in ended.error


def test_a_key_on_the_command_line_of_an_engine(tmp_path: Path) -> None:
    engine = NATIVE + 'args = ["--api-key", "hush"]\n'
    ended = servescope("run", plan(tmp_path, engine, PREFIX_HIT))
    assert ended.code == 2
    assert "api_key_env" in ended.error
    assert "hush" not in ended.err


@pytest.mark.parametrize("kind", ["auto", "native", "openai"])
def test_unreachable_url(tmp_path: Path, kind: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = servescope("run", plan(tmp_path, behind(url, kind=kind), PREFIX_HIT), "--out", tmp_path / "out")
    assert ended.code == 5
    assert url in ended.error
    assert "check that the server is up" in ended.error


def test_a_host_that_does_not_exist(tmp_path: Path) -> None:
    file = plan(tmp_path, NATIVE, PREFIX_HIT)
    ended = servescope("run", file, "--engine", "http://no-such-host.invalid:8000", "--out", tmp_path / "out")
    assert ended.code == 5
    assert "no-such-host.invalid" in ended.error


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1:1", "http://127.0.0.1:99999", "http://u:p@127.0.0.1:1"])
def test_what_is_no_url(tmp_path: Path, url: str) -> None:
    ended = servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT), "--engine", url, "--out", tmp_path / "out")
    assert ended.code == 2
    assert ended.error
    assert "u:p" not in ended.err


@pytest.mark.parametrize("kind", ["auto", "native", "openai"])
def test_a_server_that_is_no_llm_server(tmp_path: Path, kind: str) -> None:
    with web_server() as url:
        ended = servescope("run", plan(tmp_path, behind(url, kind=kind), PREFIX_HIT), "--out", tmp_path / "out")
    assert ended.code == 5
    assert url in ended.error
    assert "no LLM server" in ended.error


def test_a_server_of_another_model(tmp_path: Path) -> None:
    model = shutil.copytree(find_model("tiny").path, tmp_path / "other")
    with scripted() as server:
        file = plan(tmp_path, behind(server.url), PREFIX_HIT, model=str(model))
        ended = servescope("run", file, "--out", tmp_path / "out")
        assert not server.prompts
    assert ended.code == 2
    assert "serves no model 'other'; it serves tiny" in ended.error


def test_port_in_use(tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes the port between the moment it was found free and the start."""
    monkeypatch.setattr(session, "free_port", lambda: taken)
    ended = servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT), "--out", tmp_path / "out")
    assert ended.code == 5
    assert f"port {taken} on 127.0.0.1 is not free" in ended.error
    assert _engines() == []


def test_port_in_use_by_serve(tmp_path: Path, taken: int) -> None:
    with running(tmp_path, "serve", "native", "--model", find_model("tiny").path, "--port", taken) as command:
        ended = command.end()
    assert ended.code == 5
    assert f"127.0.0.1:{taken}" in ended.err
    assert "--port" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_an_engine_that_dies_while_loading(tmp_path: Path) -> None:
    engine = NATIVE + 'args = ["--no-such-flag"]\n'
    ended = servescope("run", plan(tmp_path, engine, PREFIX_HIT), "--out", tmp_path / "out")
    assert ended.code == 5
    assert "died while loading (exit code 2)" in ended.error
    assert "--no-such-flag" in ended.error  # the last lines of its log
    log = next((tmp_path / "out").glob("*/logs/native.log"))
    assert str(log) in ended.error
    assert _engines() == []


def test_a_model_too_long_for_the_engine(tmp_path: Path) -> None:
    long = PREFIX_HIT.replace("prefix_tokens = 48", "prefix_tokens = 4800")
    ended = servescope("run", plan(tmp_path, NATIVE, long), "--out", tmp_path / "out")
    assert ended.code == 2
    assert "1,024" in ended.error or "1024" in ended.error


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = servescope("run", plan(tmp_path, NATIVE, PREFIX_HIT), "--out", tmp_path / "file" / "out")
    assert ended.code == 5
    assert "choose another --out" in ended.error


def test_report_of_what_is_no_run(tmp_path: Path) -> None:
    assert servescope("report", tmp_path / "none").code == 2
    ended = servescope("report", tmp_path)
    assert ended.code == 2
    assert "name a run or cell directory" in ended.error


def _engines() -> list[int]:
    """Native cores below this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "native_core" in child.cmdline():
                found.append(child.pid)
        except psutil.Error:
            continue
    return found
