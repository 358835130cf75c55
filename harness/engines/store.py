"""Environments that engines are started from: those installed here, and those added by hand."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError

from harness.records.errors import UsageError
from harness.records.manifest import Record
from harness.records.rundir import write_atomic

MARKER = "engine.json"
FORMAT = 1


class EngineEnv(Record):
    """One row of `servescope engines list`; also the marker file, written last, of an installed environment."""

    schema_version: int = FORMAT
    name: str
    kind: str
    python: str  # interpreter, absolute
    version: str | None = None
    device: str | None = None  # cpu for installed ones; unknown for added ones
    python_version: str | None = None
    packages_sha256: str | None = None  # of the sorted `name==version` lines
    stand_ins: dict[str, str] = Field(default_factory=dict)  # module → sha256 of its text
    installed_utc: str | None = None
    added: bool = False  # by `engines add`: we did not make it and never touch it


def cache_root() -> Path:
    """SERVESCOPE_CACHE, else the user's cache directory of this platform."""
    import platformdirs

    chosen = os.environ.get("SERVESCOPE_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("servescope"))


def engines_root() -> Path:
    return cache_root() / "engines"


def list_engines() -> list[EngineEnv]:
    """Every complete environment, by name. Half-made ones have no marker and are left out; `doctor` names them."""
    found = [env for path in _markers() if (env := _read(path)) is not None]
    return sorted(found, key=lambda env: env.name)


def find_engine(name: str) -> EngineEnv:
    """The environment called `name`, or the newest of the kind `name`; UsageError if there is none."""
    rows = list_engines()
    for row in rows:
        if row.name == name:
            return row
    of_kind = [row for row in rows if row.kind == name]
    if of_kind:
        return max(of_kind, key=lambda row: _release(row.version))
    kind = name.split("-", 1)[0]
    mend = (
        f"servescope engines install {kind} --device cpu" if kind in ("vllm", "sglang") else "servescope engines list"
    )
    raise UsageError(f"no engine environment is called {name!r}", mend=mend)


def add_engine(name: str, kind: str, python: str | Path) -> EngineEnv:
    """Remember an environment of the user's own. UsageError if the interpreter is missing, cannot import the engine,
    or the name is taken by another."""
    if kind not in ("vllm", "sglang"):
        raise UsageError(f"kind {kind!r} cannot be added", mend="known are vllm, sglang")
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"{name!r} is no name for an environment", mend="use letters, digits, dots and dashes")
    # Not resolved: a venv's interpreter is a link, and following it would lose the venv.
    path = Path(python).expanduser().absolute()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(f"{path} is not an interpreter that can be run", mend="give the venv's bin/python")
    taken = next((row for row in list_engines() if row.name == name and not row.added), None)
    if taken is not None:
        raise UsageError(f"the name {name!r} belongs to an installed environment", mend="choose another")
    from harness.engines.interpreter import installed_version, python_version

    version = installed_version(str(path), kind)
    if version is None:
        raise UsageError(f"{path} has no {kind} installed", mend=f"install {kind} there first")
    env = EngineEnv(
        name=name,
        kind=kind,
        python=str(path),
        version=version,
        python_version=python_version(str(path)),
        added=True,
    )
    target = engines_root() / "added"
    target.mkdir(parents=True, exist_ok=True)
    write_atomic(target / f"{name}.json", (env.model_dump_json(indent=2) + "\n").encode())
    return env


def write_marker(directory: Path, env: EngineEnv) -> None:
    write_atomic(directory / MARKER, (env.model_dump_json(indent=2) + "\n").encode())


def read_marker(directory: Path) -> EngineEnv | None:
    """The marker of an installed environment; None if it is absent, foreign or damaged."""
    return _read(directory / MARKER)


def half_made() -> list[Path]:
    """Installed directories without a readable marker."""
    root = engines_root()
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if (path / "pyvenv.cfg").is_file() and read_marker(path) is None)


def _markers() -> list[Path]:
    root = engines_root()
    if not root.is_dir():
        return []
    return [*sorted(root.glob(f"*/{MARKER}")), *sorted((root / "added").glob("*.json"))]


def _read(path: Path) -> EngineEnv | None:
    try:
        env = EngineEnv.model_validate_json(path.read_bytes())
    except (OSError, ValidationError, ValueError):
        return None
    return env if env.schema_version == FORMAT and Path(env.python).exists() else None


def _release(version: str | None) -> tuple[int, ...]:
    """A release as numbers, so that 0.9 sorts before 0.10; unknown ones first."""
    parts = (version or "").split("+")[0].split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
