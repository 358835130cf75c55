"""What a result depends on beside engine and workload: machine, packages, settings, source. Secrets never enter."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harness.observe.gpu import gpu_facts
from harness.records.manifest import Anchor

PACKAGES = ("servescope", "numpy", "pyarrow", "uvloop", "httpx", "orjson", "tokenizers", "scipy", "pandas")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED")
PREFIXES = ("OPENBLAS_", "VLLM_", "SGLANG_", "NCCL_")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")


def anchor() -> Anchor:
    """Both clocks at one instant; read until two monotonic readings enclose the wall clock within 50 us."""
    while True:
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < 50_000:
            return Anchor(monotonic_ns=(before + after) // 2, unix_ns=wall)


def capture() -> dict[str, Any]:
    """The manifest's host, gpu, packages, environment and git."""
    return {
        "host": _host(),
        "gpu": gpu_facts(),
        "packages": {"python": platform.python_version(), **_packages()},
        "environment": _environment(),
        "git": _git(),
    }


def _host() -> dict[str, Any]:
    model, flags = _cpu()
    return {
        "cpu_model": model,
        "cpu_flags": [flag for flag in CPU_FLAGS if flag in flags],
        "cores": psutil.cpu_count(logical=True),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "cgroup_cpu_max": _text(Path("/sys/fs/cgroup/cpu.max")) or _text(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")),
        "cgroup_memory_max": _text(Path("/sys/fs/cgroup/memory.max"))
        or _text(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")),
    }


def _cpu() -> tuple[str, set[str]]:
    name, flags = platform.processor() or platform.machine(), set[str]()
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return name, flags


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _environment() -> dict[str, str]:
    """Only names that are known to change results, and none that could hold a key."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in VARIABLES or name.startswith(PREFIXES)) and not any(word in name.upper() for word in SECRET_WORDS)
    }


def _git() -> dict[str, Any]:
    """Commit of the tree that servescope runs from; empty for an installed package."""
    root = Path(__file__).resolve().parents[2]
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if not (root / ".git").exists() or commit is None:
        return {}
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "dirty": bool(changed)}


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
