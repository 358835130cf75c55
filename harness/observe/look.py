"""A look at a running engine: what it is, how it is set, and how the six stages stand. Sends no load.

Everything here only asks: metrics pages and configuration routes, none of which makes an engine generate.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from harness.engines.detect import detect_kind
from harness.engines.http import get_metrics
from harness.engines.openai import served_models
from harness.engines.protocol import Endpoint
from harness.engines.registry import adapter
from harness.observe.checks.batch import batch_checks
from harness.observe.checks.communication import communication_checks
from harness.observe.checks.config import config_checks
from harness.observe.checks.kernel import kernel_checks
from harness.observe.checks.kv_cache import kv_cache_checks
from harness.observe.checks.queue import queue_checks
from harness.observe.evidence import Evidence, HostLoad, Page
from harness.observe.exposition import ExpositionError, parse
from harness.observe.gpu import gpu_facts
from harness.observe.look_report import DriftNames, LookReport, Stage, StageRow
from harness.records.errors import InfrastructureError
from harness.records.manifest import EngineInfo
from harness.records.rundir import utc_now
from harness.records.signals.catalogue import KINDS, Catalogue

BUDGET_S = 9.0  # of the ten seconds a look may take, what is left to asking and watching
EVERY_S = 0.5
SCRAPE_S = 2.0  # longest wait for one page
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STAGES = (
    ("queue", queue_checks),
    ("kv_cache", kv_cache_checks),
    ("kernel", kernel_checks),
    ("communication", communication_checks),
    ("batch", batch_checks),
    ("config", config_checks),
)


@dataclass(frozen=True)
class Watched:
    pages: list[Page]
    why: str  # of the last scrape that failed
    failed: int
    cpu: float | None


def look(url: str, *, kind: str | None = None, api_key: str | None = None, seconds: float = 4.0) -> LookReport:
    """Watch the engine at `url` for `seconds` and judge what it shows.

    InfrastructureError if nothing answers, the key is refused or what answers is no LLM server; UsageError for an
    unknown kind.
    """
    begin = time.monotonic()
    if kind is not None:
        adapter(kind)  # an unknown kind is said before anything is asked
    endpoint = Endpoint(base_url=base_url(url), model="", api_key=api_key)
    found = kind or detect_kind(endpoint)
    models = served_models(endpoint)
    endpoint = Endpoint(base_url=endpoint.base_url, model=models[0] if models else "", api_key=api_key)
    info = adapter(found).describe(endpoint)
    if kind is not None and not models and info.version is None and get_metrics(endpoint) is None:
        raise InfrastructureError(
            f"{endpoint.base_url} answers, but is no {kind} server", mend="leave --engine out to have it told apart"
        )
    left = max(BUDGET_S - (time.monotonic() - begin), 2 * EVERY_S)
    watched = watch(endpoint, min(seconds, left))
    evidence = gather(info, watched, _local(endpoint))
    return _report(endpoint, evidence, models, watched, begin)


def base_url(url: str) -> str:
    """Without the tails that people paste along: a slash, /v1, /metrics."""
    trimmed = url.strip().rstrip("/")
    for tail in ("/v1", "/metrics"):
        trimmed = trimmed.removesuffix(tail)
    return trimmed.rstrip("/")


def watch(endpoint: Endpoint, seconds: float) -> Watched:
    """Scrapes over `seconds`, the first at once and the last at the end. A scrape that fails is counted.

    Pages are parsed when the watch is over: what we do ourselves must not be what we see of this machine.
    """
    import psutil

    steps = max(round(seconds / EVERY_S), 1)
    bodies: list[tuple[float, bytes]] = []
    failed, why = 0, ""
    url = endpoint.metrics_url or f"{endpoint.base_url}/metrics"
    with _client(endpoint, url) as client:
        begin = time.monotonic()
        psutil.cpu_percent(interval=None)  # the next call speaks of the time since this one
        for due in [begin + seconds * step / steps for step in range(steps + 1)]:
            time.sleep(max(due - time.monotonic(), 0.0))
            if time.monotonic() > begin + seconds + EVERY_S:
                break  # the server is slow to answer; what was seen has to do
            body, problem = _scrape(client, url)
            if body is not None:
                bodies.append((time.monotonic(), body))
            else:
                failed, why = failed + 1, problem
        cpu = psutil.cpu_percent(interval=None) / 100 if len(bodies) > 1 else None
    pages = []
    for t, body in bodies:
        try:
            pages.append(Page(t, parse(body)))
        except ExpositionError as error:
            failed, why = failed + 1, str(error)
    return Watched(pages, why, failed, cpu)


def _client(endpoint: Endpoint, url: str) -> httpx.Client:
    """One connection for the whole watch. Certificates are loaded only where they are needed: it costs a CPU's time."""
    verify = ssl.create_default_context() if url.startswith("https:") else False
    return httpx.Client(headers=endpoint.headers, timeout=SCRAPE_S, trust_env=False, verify=verify)


def _scrape(client: httpx.Client, url: str) -> tuple[bytes | None, str]:
    try:
        response = client.get(url)
    except httpx.HTTPError as error:
        return None, f"the metrics page does not answer ({type(error).__name__})"
    if response.status_code != 200:
        return None, f"the metrics page answers {response.status_code}"
    return response.content, ""


def gather(info: EngineInfo, watched: Watched, local: bool) -> Evidence:
    """Everything the checks may look at."""
    catalogue = Catalogue.load(info.kind) if info.kind in KINDS else None
    return Evidence(
        info=info,
        catalogue=catalogue,
        pages=watched.pages,
        no_pages=watched.why if not watched.pages else "",
        flag_for_pages=catalogue.gate if catalogue and not watched.pages else "",
        host=_host(watched.cpu) if local and watched.cpu is not None else None,
        why_no_host="the engine runs on another machine" if not local else "too few scrapes to measure this machine",
        settings=info.resolved,
    )


def _local(endpoint: Endpoint) -> bool:
    return urlsplit(endpoint.base_url).hostname in LOOPBACK


def _host(cpu: float) -> HostLoad:
    import psutil

    devices = gpu_facts().get("devices") or []
    names = tuple(str(device.get("name", "GPU")) for device in devices)
    return HostLoad(cpu=cpu, cores=psutil.cpu_count() or 1, gpu_names=names)


def _report(endpoint: Endpoint, evidence: Evidence, models: list[str], watched: Watched, begin: float) -> LookReport:
    info = evidence.info
    stages = [_stage(Stage.model_validate({"stage": name, "checks": make(evidence)})) for name, make in STAGES]
    return LookReport(
        url=endpoint.base_url,
        kind=info.kind,
        version=info.version,
        models=models,
        config={
            "block_size": info.block_size,
            "kv_tokens": info.kv_tokens,
            "max_model_len": info.max_model_len,
            "prefix_caching": info.prefix_caching,
            "scheduler": info.scheduler,
            "async_loop": info.async_loop,
            "max_num_seqs": info.max_num_seqs,
            "max_batched_tokens": info.max_batched_tokens,
        },
        fingerprint=info.fingerprint,
        utc=utc_now(),
        watched_s=evidence.seconds,
        scrapes=len(evidence.pages),
        freshness=evidence.catalogue.freshness if evidence.catalogue else "unknown",
        resets=evidence.resets,
        stages=stages,
        drift=_drift(evidence),
        notes=_notes(evidence, watched),
        took_s=time.monotonic() - begin,
    )


def _stage(stage: Stage) -> StageRow:
    return StageRow(stage=stage.stage, checks=stage.checks, verdict=stage.state)


def _drift(evidence: Evidence) -> DriftNames:
    if evidence.catalogue is None or not evidence.pages:
        return DriftNames()
    drift = evidence.catalogue.drift(evidence.pages[-1].samples)
    return DriftNames(lacking=list(drift.lacking), unknown=list(drift.unknown), outdated=dict(drift.outdated))


def _notes(evidence: Evidence, watched: Watched) -> list[str]:
    notes = []
    if evidence.resets:
        notes.append("counters fell while we watched: the engine restarted, so there are no window figures")
    if watched.failed and watched.pages:
        notes.append(f"{watched.failed} scrapes failed: {watched.why}")
    if evidence.pages and evidence.idle:
        notes.append("idle: nothing ran while we watched, so only figures since the engine's start speak of load")
    return notes
