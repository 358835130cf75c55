"""What a look at a running engine found, stage by stage; a document that keeps every figure beside its sentence."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

CheckState = Literal["ok", "warn", "info", "not observable"]
StageState = Literal["ok", "warn", "not observable"]
StageName = Literal["queue", "kv_cache", "kernel", "communication", "batch", "config"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Figure(_Model):
    """One number in its SI unit. now: newest scrape; window: while we watched; lifetime: since the engine's start."""

    name: str
    value: float
    unit: str
    scope: Literal["now", "window", "lifetime"]


class Check(_Model):
    """One question put to the engine. info: a figure without a limit to hold it against, so nothing is judged."""

    id: str
    state: CheckState
    says: str
    why: str = ""  # the limit and where it comes from, or why the figure misleads
    flag: str = ""  # what would make it observable
    figures: list[Figure] = Field(default_factory=list)


class Stage(_Model):
    stage: StageName
    checks: list[Check]

    @property
    def state(self) -> StageState:
        """warn if one check warns; ok if at least one was passed; a figure alone proves nothing."""
        states = {check.state for check in self.checks}
        if "warn" in states:
            return "warn"
        return "ok" if "ok" in states else "not observable"


class StageRow(Stage):
    """A stage with its state written out, as it goes into JSON."""

    verdict: StageState


class DriftNames(_Model):
    lacking: list[str] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)
    outdated: dict[str, str] = Field(default_factory=dict)


class LookReport(_Model):
    url: str
    kind: str
    version: str | None
    models: list[str]
    config: dict[str, str | int | float | bool | None]
    fingerprint: str | None
    utc: str
    watched_s: float  # from the first scrape to the last
    scrapes: int
    freshness: str  # how old the engine's figures may be
    resets: int  # counters that fell while we watched: the engine restarted
    stages: list[StageRow]
    drift: DriftNames
    notes: list[str] = Field(default_factory=list)
    took_s: float
