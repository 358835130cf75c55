"""What stands between this machine and a run: environments that do not import, disk, limits, missing instructions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from harness.engines.interpreter import find_python, import_fault, installed_version, packages_sha256, python_version
from harness.engines.kit import ENGINES, load_kit
from harness.engines.store import EngineEnv, engines_root, half_made, list_engines
from harness.records.manifest import Record

MIN_FILES = 4096  # open files: one socket a stream, a few hundred streams, and what the engine opens


class DoctorRow(Record):
    """One finding. `mend` is empty where nothing has to be done."""

    subject: str  # machine, or the name of an environment
    check: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    mend: str = ""


def doctor(*, imports: bool = True) -> list[DoctorRow]:
    """Every check. `imports=False` leaves out the slow one, which imports each engine in its own interpreter."""
    rows = [*_machine()]
    for env in list_engines():
        rows += _environment(env, imports=imports)
    rows += [
        DoctorRow(
            subject=path.name,
            check="marker",
            state="fail",
            detail="the installation did not come to its end",
            mend=f"servescope engines install {path.name.split('-', 1)[0]} --device cpu",
        )
        for path in half_made()
    ]
    present = {row.subject.split("-", 1)[0] for row in rows}
    kinds = {env.kind for env in list_engines()} | present
    rows += [
        DoctorRow(
            subject=kind,
            check="installed",
            state="warn",
            detail="no environment",
            mend=f"servescope engines install {kind} --device cpu",
        )
        for kind in ENGINES
        if kind not in kinds
    ]
    return rows


def _environment(env: EngineEnv, *, imports: bool) -> list[DoctorRow]:
    repair = f"servescope engines install {env.kind} --device cpu"
    mend = "repair that environment" if env.added else repair
    python = python_version(env.python)
    if python is None:
        return [_row(env.name, "python", False, f"{env.python} does not run", mend)]
    rows = [_row(env.name, "python", True, f"{python} at {env.python}", "")]
    version = installed_version(env.python, env.kind)
    rows.append(_row(env.name, "version", version is not None, f"{env.kind} {version or 'not installed'}", mend))
    if not env.added:
        same = packages_sha256(env.python) == env.packages_sha256
        said = "as installed" if same else "changed since the installation"
        rows.append(_row(env.name, "packages", same, said, mend, bad="warn"))
    if imports and version is not None:
        fault = import_fault(env.python, env.kind)
        rows.append(_row(env.name, "import", fault is None, fault or f"import {env.kind} works", mend))
    return rows


def _machine() -> list[DoctorRow]:
    rows = [_disk(), _files()]
    flags = cpu_flags()
    if flags is None:
        rows.append(_row("machine", "cpu", False, "its instructions are not told here", "", bad="warn"))
    else:
        for kind in ENGINES:
            missing = [flag for flag in load_kit(kind).cpu_flags if flag not in flags]
            said = f"lacks {', '.join(missing)}" if missing else "has AVX-512"
            amx = "; AMX too, SGLang's recipe does not use it" if kind == "sglang" and "amx_tile" in flags else ""
            rows.append(_row("machine", f"cpu for {kind}", not missing, said + amx, "use another machine", bad="warn"))
    wanted = load_kit("vllm").python
    found = find_python(wanted)
    mend = f"install python{wanted} so that it is on the PATH"
    rows.append(_row("machine", f"python {wanted}", found is not None, found or "not found", mend, bad="warn"))
    return rows


def cpu_flags() -> frozenset[str] | None:
    """Instruction sets of the first processor, as Linux tells them; None elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None


def _disk() -> DoctorRow:
    root = engines_root()
    near = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(near).free / 2**30
    need = max(load_kit(kind).disk_gib for kind in ENGINES) * 1.2
    said = f"{free:.1f} GiB free in {near}"
    return _row("machine", "disk", free >= need, said, f"an installation takes up to {need:.1f} GiB", bad="warn")


def _files() -> DoctorRow:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= MIN_FILES
    return _row("machine", "open files", enough, f"limit {soft}, at most {hard}", f"ulimit -n {MIN_FILES}", bad="warn")


def _row(
    subject: str, check: str, good: bool, detail: str, mend: str, *, bad: Literal["warn", "fail"] = "fail"
) -> DoctorRow:
    return DoctorRow(
        subject=subject, check=check, state="ok" if good else bad, detail=detail, mend="" if good else mend
    )
