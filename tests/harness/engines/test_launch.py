"""Command lines are pure data: what an option becomes, what is refused, what each profile adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.engines.options import HIDDEN, redacted, shown
from harness.engines.profiles import additions
from harness.engines.protocol import EngineConfig, ModelDir
from harness.engines.registry import KINDS, adapter
from harness.engines.vllm import usable_tokens
from harness.records.errors import UsageError

MODEL = ModelDir("smol", Path("/models/smol"))


def config(kind: str, **fields: Any) -> EngineConfig:
    fields.setdefault("env", f"{kind}-1.0-cpu")
    return EngineConfig(name=kind, kind=kind, python="/envs/x/bin/python", **fields)


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_the_same_plan_gives_each_engine_the_same_pool() -> None:
    options = {"kv_tokens": 46592, "max_model_len": 4096}
    vllm = adapter("vllm").launch(config("vllm", options={**options, "block_size": 128}), MODEL, 8000)
    blocks = int(value(vllm.argv, "--num-gpu-blocks-override"))
    assert usable_tokens(blocks, 128) == 46592  # 364 blocks for requests and the null block
    sglang = adapter("sglang").launch(config("sglang", options={**options, "block_size": 1}), MODEL, 8000)
    assert value(sglang.argv, "--max-total-tokens") == "46592"
    native = adapter("native").launch(config("native", options={**options, "block_size": 128}), MODEL, 8000)
    assert value(native.argv, "--kv-tokens") == "46592"


def test_a_pool_that_is_no_multiple_is_rounded_up() -> None:
    argv = adapter("vllm").launch(config("vllm", options={"kv_tokens": 100, "block_size": 32}), MODEL, 1).argv
    assert usable_tokens(int(value(argv, "--num-gpu-blocks-override")), 32) == 128


def test_the_default_block_of_the_device_decides_the_pool() -> None:
    cpu = adapter("vllm").launch(config("vllm", options={"kv_tokens": 1280}), MODEL, 1).argv
    gpu = adapter("vllm").launch(config("vllm", env="mine", options={"kv_tokens": 1280}), MODEL, 1).argv
    assert value(cpu, "--num-gpu-blocks-override") == str(1280 // 128 + 1)
    assert value(gpu, "--num-gpu-blocks-override") == str(1280 // 16 + 1)


def test_vllm_on_a_cpu_refuses_a_block_it_would_die_of() -> None:
    with pytest.raises(UsageError, match="multiple of 32"):
        adapter("vllm").launch(config("vllm", options={"kv_tokens": 1600, "block_size": 16}), MODEL, 1)


@pytest.mark.parametrize("kind", ["native", "vllm", "sglang"])
def test_everything_binds_to_loopback_and_own_arguments_come_last(kind: str) -> None:
    spec = adapter(kind).launch(config(kind, args=("--last", "word")), MODEL, 8123)
    assert value(spec.argv, "--host") == "127.0.0.1"
    assert value(spec.argv, "--port") == "8123"
    assert spec.argv[-2:] == ("--last", "word")
    assert str(MODEL.path) in spec.argv
    assert MODEL.name in spec.argv


@pytest.mark.parametrize("kind", ["native", "vllm", "sglang"])
def test_prefix_caching_off(kind: str) -> None:
    off = adapter(kind).launch(config(kind, options={"prefix_caching": False}), MODEL, 1).argv
    assert {"--no-prefix-caching", "--no-enable-prefix-caching", "--disable-radix-cache"} & set(off)


def test_threads_reach_the_engine() -> None:
    vllm = adapter("vllm").launch(config("vllm", options={"threads": 2}), MODEL, 1).environ
    assert (vllm["OMP_NUM_THREADS"], vllm["VLLM_CPU_OMP_THREADS_BIND"]) == ("2", "nobind")
    assert (
        adapter("sglang").launch(config("sglang", options={"threads": 2}), MODEL, 1).environ["OMP_NUM_THREADS"] == "2"
    )
    assert value(adapter("native").launch(config("native", options={"threads": 2}), MODEL, 1).argv, "--threads") == "2"


def test_a_gpu_environment_is_not_told_that_it_is_a_cpu() -> None:
    spec = adapter("sglang").launch(config("sglang", env="my-gpu"), MODEL, 1)
    assert "--device" not in spec.argv
    assert "SGLANG_USE_CPU_ENGINE" not in spec.environ
    assert "VLLM_CPU_KVCACHE_SPACE" not in adapter("vllm").launch(config("vllm", env="my-gpu"), MODEL, 1).environ
    asked = adapter("sglang").launch(config("sglang", env="mine", options={"device": "cpu"}), MODEL, 1)
    assert value(asked.argv, "--device") == "cpu"


@pytest.mark.parametrize("kind", ["native", "vllm", "sglang"])
def test_unknown_options_are_named(kind: str) -> None:
    with pytest.raises(UsageError, match=r"blok_size.*kv_tokenz") as caught:
        adapter(kind).launch(config(kind, options={"kv_tokenz": 1, "blok_size": 2}), MODEL, 1)
    assert caught.value.exit_code == 2


def test_an_option_of_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot honour the options profile"):
        adapter("vllm").launch(config("vllm", options={"profile": "x"}), MODEL, 1)


@pytest.mark.parametrize("wrong", [{"block_size": "16"}, {"block_size": 0}, {"threads": True}, {"prefix_caching": 1}])
def test_options_of_a_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        adapter("sglang").launch(config("sglang", options=wrong), MODEL, 1)


def test_without_an_environment_there_is_a_mend() -> None:
    with pytest.raises(UsageError, match="engines install vllm"):
        adapter("vllm").launch(EngineConfig(name="v", kind="vllm"), MODEL, 1)


def test_a_foreign_server_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="url ="):
        adapter("openai").launch(config("openai"), MODEL, 1)


def test_unknown_kind() -> None:
    with pytest.raises(UsageError, match="vllm, sglang"):
        adapter("tgi")
    assert {adapter(kind).kind for kind in KINDS} == set(KINDS)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_full_contains_light_and_every_addition_has_a_reason(kind: str) -> None:
    light, full = additions(kind, "light"), additions(kind, "full")
    assert light
    assert full[: len(light)] == light
    assert len(full) > len(light)
    assert all(row.why and (row.args or row.environ) for row in full)
    spec = adapter(kind).launch(config(kind, evidence="light"), MODEL, 1)
    assert set(light[0].args) <= set(spec.argv)
    assert not {arg for row in full[len(light) :] for arg in row.args if arg.startswith("--")} & set(spec.argv)


def test_no_health_probe_of_sglang_generates() -> None:
    spec = adapter("sglang").launch(config("sglang", evidence="light"), MODEL, 1)
    assert spec.ready_path == "/ready"
    assert spec.environ["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"


def test_keys_are_hidden_in_what_is_shown() -> None:
    argv = ["python", "--api-key", "sk-1", "--admin-api-key=sk-2", "--hf-token", "hf", "--max-total-tokens", "5"]
    assert redacted(argv) == [
        "python",
        "--api-key",
        HIDDEN,
        f"--admin-api-key={HIDDEN}",
        "--hf-token",
        HIDDEN,
        "--max-total-tokens",
        "5",
    ]
    assert "sk-1" not in shown(argv)
