"""`servescope workload`: make, describe, validate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.workload import workload_app
from harness.records.errors import UsageError
from workloads.file import read_workload, write_workload
from workloads.registry import FAMILIES

runner = CliRunner()


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model"
    path.mkdir()
    vocab = {f"t{i}": i for i in range(400)}
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    (path / "config.json").write_text(json.dumps({"vocab_size": 400}))
    return str(path)


def succeed(*words: str) -> str:
    result = runner.invoke(workload_app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def fail(*words: str) -> str:
    result = runner.invoke(workload_app, list(words))
    assert isinstance(result.exception, UsageError)
    return str(result.exception)


@pytest.mark.parametrize("family", FAMILIES)
def test_made_is_valid_and_described(family: str, model: str, tmp_path: Path) -> None:
    file = str(tmp_path / "w.jsonl.gz")
    made = json.loads(succeed("make", family, "--out", file, "--model", model, "--seed", "3", "--json"))
    assert json.loads(succeed("describe", file, "--json")) | {k: made[k] for k in ("file", "sha256")} == made
    assert made["requests"] == len(read_workload(Path(file)).requests)
    assert f"{made['prompt_tokens']:,} tokens" in succeed("describe", file)
    assert json.loads(succeed("validate", file, "--model", model, "--json"))["valid"] is True


def test_parameters_and_load_of_a_family(model: str, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl.gz"
    succeed(
        "make", "multi_turn", "-o", str(file), "--model", model, "--set", "user_tokens=[3, 5]", "--set", "answers=real",
        "--load", "mode=poisson rate=2.5",
    )  # fmt: skip
    workload = read_workload(file)
    assert workload.params["answers"] == "real"
    assert workload.params["user_tokens"] == [3, 5]
    assert workload.load.params == {"rate": 2.5}
    succeed("validate", str(file))


def test_a_workload_of_a_plan(model: str, tmp_path: Path) -> None:
    plan = str(Path(__file__).parents[2] / "plans" / "ci-three-engines.toml")
    file = tmp_path / "w.jsonl.gz"
    succeed("make", plan, "--workload", "long-prompt", "-o", str(file), "--model", model)
    assert (read_workload(file).name, read_workload(file).seed) == ("long-prompt", 7)
    assert "name one with --workload: prefix-hit" in fail("make", plan, "-o", str(file), "--model", model)
    assert "belong to a family" in fail("make", plan, "-o", str(file), "--set", "a=1")


def test_a_broken_promise_is_found(model: str, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl.gz"
    succeed("make", "prefix_hit", "-o", str(file), "--model", model)
    workload = read_workload(file)
    row = replace(workload.requests[-1], shared_tokens=5)
    write_workload(replace(workload, requests=(*workload.requests[:-1], row)), file)
    assert "promises 5 shared tokens, it shares 0" in fail("validate", str(file))


def test_another_tokenizer_is_found(model: str, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl.gz"
    succeed("make", "prefix_hit", "-o", str(file), "--model", model)
    tokenizer = Path(model) / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert "made for another tokenizer" in fail("validate", str(file), "--model", model)


def test_errors_are_one_line(model: str, tmp_path: Path) -> None:
    out = ("-o", str(tmp_path / "w.jsonl.gz"), "--model", model)
    assert "did you mean 'prefix_hit'" in fail("make", "prefix-hit", *out)
    assert "unknown parameter 'ful'" in fail("make", "prefix_hit", "--set", "ful=1", *out)
    assert "no KEY=VALUE" in fail("make", "prefix_hit", "--set", "full", *out)
    assert "unknown mode" in fail("make", "prefix_hit", "--load", "rate=2", *out)
    assert "cannot write" in fail("make", "prefix_hit", "-o", str(tmp_path / "no" / "w.gz"), "--model", model)
    assert "does not exist" in fail("describe", str(tmp_path / "none"))
