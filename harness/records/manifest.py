"""`manifest.json`: what ran, where, against what, and how it ended."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.records.tables import SCHEMA_VERSION

Kind = Literal["run", "probe", "import", "observation"]
Status = Literal["complete", "interrupted", "died"]
EvidenceProfile = Literal["light", "full"]
CacheState = Literal["fresh", "flushed", "salted", "warm"]


class Record(BaseModel):
    """Base of every persisted model: an unknown key is a foreign schema, not something to skip."""

    model_config = ConfigDict(extra="forbid")


class EngineInfo(Record):
    """What an engine says about itself. `None` means that it does not say, never a default."""

    kind: str
    name: str
    version: str | None = None
    url: str | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    prefix_caching: bool | None = None
    scheduler: str | None = None
    async_loop: bool | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    resolved: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str | None = None
    flags: list[str] = Field(default_factory=list)
    environ: dict[str, str] = Field(default_factory=dict)
    started_by_us: bool = False
    pid: int | None = None
    log_facts: dict[str, str] = Field(default_factory=dict)  # attention backend, dtype … read from the start-up log


class ModelInfo(Record):
    name: str
    path: str | None = None
    weights_sha256: str | None = None
    vocab_size: int | None = None


class CacheProof(Record):
    """How the cache was brought to its declared state, and what shows that it worked."""

    state: CacheState
    method: str  # restart | POST /reset_prefix_cache | GET /flush_cache | salt | declared
    proven: bool
    evidence: str


class WorkloadInfo(Record):
    name: str
    family: str
    seed: int
    sha256: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    load: dict[str, Any] = Field(default_factory=dict)
    requests: int = 0


class Window(Record):
    """Monotonic ns. `t_begin`: first warm-up send; `t_measure`..`t_stop`: measured sends; `t_end`: all answered."""

    t_begin: int | None = None
    t_measure: int | None = None
    t_stop: int | None = None
    t_end: int | None = None


class Anchor(Record):
    """One instant on both clocks: wall = unix_ns + (t - monotonic_ns)."""

    monotonic_ns: int
    unix_ns: int


class WorkerInfo(Record):
    """One client process: its CPU and the lateness of its event loop over the cell."""

    worker: int
    cpu_s: float
    wall_s: float
    loop_lag_p99_ms: float | None = None
    dispatch_lag_p99_ms: float | None = None
    kernel_stamps: Literal["all", "sampled", "none"] = "none"
    kernel_stamps_why: str = ""


class Manifest(Record):
    schema_version: int = SCHEMA_VERSION
    kind: Kind = "run"
    status: Status = "complete"
    died_at: str | None = None  # UTC
    died_of: str | None = None
    tool_version: str
    cell: str
    repeat: int = 1
    created_utc: str
    engine: EngineInfo
    model: ModelInfo
    workload: WorkloadInfo
    evidence: EvidenceProfile
    cache: CacheProof
    slo: dict[str, float] = Field(default_factory=dict)
    timeouts_s: dict[str, float] = Field(default_factory=dict)
    scrape_s: float = 0.5
    window: Window = Field(default_factory=Window)
    anchor: Anchor
    workers: list[WorkerInfo] = Field(default_factory=list)
    scrape_errors: int = 0
    redacted: bool = False
    host: dict[str, Any] = Field(default_factory=dict)
    gpu: dict[str, Any] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)  # allow-listed names only: keys reach no artefact
    git: dict[str, Any] = Field(default_factory=dict)
