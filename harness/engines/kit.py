"""Recipes for engines on a CPU, read from kits/*.toml: packages, what is removed after, stand-ins, disk."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from harness.records.errors import UsageError

ENGINES = ("vllm", "sglang")


@dataclass(frozen=True)
class Step:
    """One call of pip. `packages` may hold `{version}`."""

    why: str
    packages: tuple[str, ...]
    no_deps: bool = False


@dataclass(frozen=True)
class Kit:
    """How one engine is installed for one device."""

    kind: str
    device: str
    version: str
    versions: tuple[str, ...]
    python: str  # "3.11": the only one the recipe was run on
    disk_gib: float
    needs_torch_index: bool  # the torch build is on an index of its own
    import_name: str
    cpu_flags: tuple[str, ...]
    steps: tuple[Step, ...]
    remove: tuple[str, ...]
    stand_ins: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.version}-{self.device}"


def load_kit(engine: str, version: str | None = None, device: str = "cpu") -> Kit:
    """The recipe; UsageError for an engine, a device or a release that there is none for."""
    if engine not in ENGINES:
        raise UsageError(f"there is no recipe for {engine!r}", mend=f"known are {', '.join(ENGINES)}")
    if device != "cpu":
        raise UsageError(
            f"there is no recipe for {engine} on {device!r}",
            mend="install it yourself and use `servescope engines add NAME --kind K --python PATH`",
        )
    text = files("harness.engines.kits").joinpath(f"{engine}-{device}.toml").read_text("utf-8")
    table = tomllib.loads(text)
    chosen = version or str(table["default"])
    if chosen not in table["versions"]:
        raise UsageError(
            f"there is no recipe for {engine} {chosen} on {device}", mend=f"known are {', '.join(table['versions'])}"
        )
    steps = tuple(
        Step(
            why=row["why"],
            packages=tuple(package.format(version=chosen) for package in row["packages"]),
            no_deps=row.get("no_deps", False),
        )
        for row in table["steps"]
    )
    return Kit(
        kind=table["kind"],
        device=table["device"],
        version=chosen,
        versions=tuple(table["versions"]),
        python=table["python"],
        disk_gib=float(table["disk_gib"]),
        needs_torch_index=table["needs_torch_index"],
        import_name=table["import_name"],
        cpu_flags=tuple(table["cpu_flags"]),
        steps=steps,
        remove=tuple(table["remove"]),
        stand_ins=tuple(table["stand_ins"]),
    )


def stand_in_source(name: str) -> bytes:
    """The text of a stand-in module."""
    return files("harness.engines.kits").joinpath("stand_ins", f"{name}.py").read_bytes()
