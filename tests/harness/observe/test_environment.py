"""What a manifest says of the machine, and what it must never say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from harness.observe import gpu
from harness.observe.environment import anchor, capture
from harness.records.manifest import Manifest

SECRETS = (
    "VLLM_API_KEY",
    "SGLANG_TOKEN",
    "VLLM_S3_SECRET",
    "OPENAI_API_KEY",
    "VLLM_HTTP_AUTH",
    "HF_TOKEN",
    "AWS_REGION",
)


def test_the_keys_are_the_manifests() -> None:
    assert set(capture()) == {"host", "gpu", "packages", "environment", "git"} <= set(Manifest.model_fields)
    json.dumps(capture())


def test_host_and_packages_are_this_machines() -> None:
    found = capture()
    assert found["host"]["cores"] == psutil.cpu_count()
    assert found["host"]["memory_bytes"] == psutil.virtual_memory().total
    assert found["host"]["cpu_model"]
    assert found["packages"]["numpy"] == version("numpy")


def test_only_listed_variables_and_never_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    found = capture()
    assert "hunter2" not in json.dumps(found)
    for name, value in (("OMP_NUM_THREADS", "3"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("SGLANG_USE_CPU_ENGINE", "1")):
        assert found["environment"][name] == value


def test_the_commit_is_the_one_of_this_tree() -> None:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        pytest.skip("the tests do not run in a git checkout")
    argv = ["git", "-C", str(root), "rev-parse", "HEAD"]
    head = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    git = capture()["git"]
    assert len(git["commit"]) == 40
    later = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert git["commit"] in (head, later)  # somebody may commit between the two


def test_an_anchor_is_one_instant_on_both_clocks() -> None:
    one = anchor()
    time.sleep(0.05)
    two = anchor()
    assert abs((two.unix_ns - one.unix_ns) - (two.monotonic_ns - one.monotonic_ns)) < 5_000_000
    assert abs(time.time_ns() - two.unix_ns) < 5_000_000_000


class NVMLError(Exception):
    """As nvidia-ml-py's."""


def fake_nvml(names: list[str | bytes], *, fails: str = "") -> ModuleType:
    """nvidia-ml-py's functions as gpu_facts calls them; `fails` names the one that raises."""

    def maybe(name: str, value: object = None) -> object:
        if name == fails:
            raise NVMLError("Driver Not Loaded")
        return value

    module = ModuleType("pynvml")
    functions = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: maybe("nvmlInit"),
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: maybe("nvmlDeviceGetCount", len(names)),
        "nvmlDeviceGetHandleByIndex": lambda at: at,
        "nvmlSystemGetDriverVersion": lambda: "575.1",
        "nvmlDeviceGetName": lambda at: names[at],
        "nvmlDeviceGetMemoryInfo": lambda at: SimpleNamespace(total=(at + 1) << 30),
    }
    for name, value in functions.items():
        setattr(module, name, value)
    return module


def test_gpus_by_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(["NVIDIA H200", b"NVIDIA L4"]))
    found = gpu.gpu_facts()
    assert found["present"] is True
    assert found["devices"] == [
        {"name": "NVIDIA H200", "memory_bytes": 1 << 30},
        {"name": "NVIDIA L4", "memory_bytes": 2 << 30},
    ]


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([], fails=fails))
    found = gpu.gpu_facts()
    assert found["present"] is False
    assert "Driver Not Loaded" in found["why"]


def test_no_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = gpu.gpu_facts()
    assert found["present"] is False
    assert found["why"].startswith("no GPU on this host")


def test_the_gpu_module_needs_nothing_but_nvml() -> None:
    """It must run in an engine's own environment, where none of servescope's dependencies are."""
    code = f"import runpy; print(runpy.run_path({gpu.__file__!r})['gpu_facts']()['present'])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True", "False")
