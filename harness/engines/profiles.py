"""Evidence profiles: which flags and variables `light` and `full` add to an engine, read from profiles.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from harness.records.manifest import EvidenceProfile


@dataclass(frozen=True)
class Addition:
    """One flag or variable, and the evidence it buys."""

    why: str
    args: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


@cache
def additions(kind: str, profile: EvidenceProfile) -> tuple[Addition, ...]:
    """What the profile adds for this kind of engine; nothing for kinds that need nothing."""
    table = tomllib.loads(files("harness.engines").joinpath("profiles.toml").read_text("utf-8")).get(kind, {})
    names = ("light", "full") if profile == "full" else ("light",)
    return tuple(
        Addition(why=row["why"], args=tuple(row.get("args", ())), environ=dict(row.get("environ", {})))
        for name in names
        for row in table.get(name, ())
    )


def profile_args(kind: str, profile: EvidenceProfile) -> list[str]:
    return [arg for addition in additions(kind, profile) for arg in addition.args]


def profile_environ(kind: str, profile: EvidenceProfile) -> dict[str, str]:
    return {name: value for addition in additions(kind, profile) for name, value in addition.environ.items()}
