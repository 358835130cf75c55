"""`validity.json`, `expected.json` and `verdict.json`: what a run means, in a form that jobs can read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.records.manifest import Record
from harness.records.tables import SCHEMA_VERSION

CheckState = Literal["ok", "suspect", "void"]
StageName = Literal["queue", "kv_cache", "gpu_kernel", "communication", "batch_shape", "model_config"]
StageState = Literal["implicated", "contributing", "ruled_out", "not_observable", "seen"]
Grade = Literal["live-proven", "code-parity", "read"]
VerdictName = Literal[
    "ok",
    "regressed",
    "improved",
    "equivalent",
    "inconclusive",
    "invalid",
    "environment_differs",
    "infrastructure",
]

STAGES: tuple[StageName, ...] = (
    "queue", "kv_cache", "gpu_kernel", "communication", "batch_shape", "model_config",
)  # fmt: skip


class Check(Record):
    id: str
    state: CheckState
    value: float | None = None
    unit: str = ""
    limits: dict[str, float] = Field(default_factory=dict)
    source: str = ""
    why: str


class Validity(Record):
    schema_version: int = SCHEMA_VERSION
    checks: list[Check]

    @property
    def state(self) -> CheckState:
        states = {check.state for check in self.checks}
        return "void" if "void" in states else "suspect" if "suspect" in states else "ok"


class ExpectedClass(Record):
    """Cached tokens of one cache class: expected as an interval (low == high when exact), and two witnesses."""

    cache_class: str
    requests: int
    prompt_tokens: int
    low: int | None = None
    high: int | None = None
    usage: int | None = None
    counters: int | None = None


class Expected(Record):
    schema_version: int = SCHEMA_VERSION
    exact: bool
    grade: Grade | None = None
    block_size: int | None = None
    refused: str | None = None  # why there is no expectation at all
    why_interval: str | None = None
    total: ExpectedClass
    classes: list[ExpectedClass] = Field(default_factory=list)
    verdict: str  # as expected | no sharing in the workload | sharing below one block | caching off | key mismatch | …
    explanation: str


class Evidence(Record):
    signal: str
    base: float | str | None = None
    now: float | str | None = None
    effect: float | None = None
    interval: tuple[float, float] | None = None
    threshold_id: str | None = None
    query: str | None = None
    unit: str = ""
    note: str = ""


class Stage(Record):
    stage: StageName
    state: StageState
    confidence: Literal["high", "medium", "low", "none"] = "none"
    headline: str = ""
    evidence: list[Evidence] = Field(default_factory=list)
    to_see_more: list[str] = Field(default_factory=list)


class MetricVerdict(Record):
    metric: str
    unit: str = ""
    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    effect: float | None = None
    margin: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    mde: float | None = None
    runs_needed: int | None = None
    verdict: VerdictName = "ok"
    labels: dict[str, str] = Field(default_factory=dict)


class Part(Record):
    name: str
    seconds: float


class Verdict(Record):
    schema_version: int = SCHEMA_VERSION
    kind: str
    verdict: VerdictName
    exit_code: int
    headline: str
    metrics: list[MetricVerdict] = Field(default_factory=list)
    stages: list[Stage] = Field(default_factory=list)
    parts: list[Part] = Field(default_factory=list)
    detail: dict[str, Any] = Field(default_factory=dict)
