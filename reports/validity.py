"""Can the figures of a cell be believed? Each check is ok, suspect or void, with its number and its limits."""

from __future__ import annotations

import numpy as np

from harness.records.judgements import Check, CheckState, Validity
from harness.records.tables import TABLES
from reports.cell import CLOSED_LOADS, Cell
from reports.client_error import ClientError
from reports.intervals import rank_of
from reports.metrics import Measured
from reports.reconcile import Line
from reports.series import Signals
from reports.windows import mean_in_flight, steady_window

# Limits, suspect and void, with where they come from.
FAILURES = (0.01, 0.10)  # the shares at which published alert sets warn and page for aborted requests
CLIENT_SHARE = (0.05, 0.25)  # of the median that it is added to: beyond, differences of the usual 3-5 % drown in it
LOOP_LAG_MS = (25.0, 250.0)  # an event loop this late is what other load generators warn of
SCRAPE_ERRORS = (0.05, 1.01)
RATE_SHORT = (0.95, 0.80)  # achieved over intended
HEIGHT_SHORT = (
    0.85  # requests in flight over wanted; lower than a rate's, since a workload's own order may hold some back
)
DRIFT = 1.10  # TPOT of the last third over the first
DRIFT_P = 0.001
TEXT_COUNTS = (0.0, 1.01)


def validity(
    cell: Cell,
    signals: Signals,
    measured: dict[str, Measured],
    error: ClientError,
    lines: list[Line],
) -> Validity:
    """All checks of one cell; a check that cannot be made says so and is not counted against the run."""
    checks = [
        _completeness(cell),
        _tables(cell),
        _failures(cell),
        _client_lateness(measured, error),
        _loop_lag(cell),
        _load(cell),
        _scrapes(cell, signals),
        _restart(signals),
        _reconciled(lines),
        _steadiness(cell, measured),
        _cache(cell),
        _counting(cell),
        _lengths(cell),
    ]
    return Validity(checks=checks)


def _above(value: float, limits: tuple[float, float]) -> CheckState:
    return "void" if value > limits[1] else "suspect" if value > limits[0] else "ok"


def _limits(limits: tuple[float, float]) -> dict[str, float]:
    return {"suspect": limits[0], "void": limits[1]}


def _completeness(cell: Cell) -> Check:
    manifest = cell.manifest
    answered = len(cell.ok)
    source = "manifest.json, requests.parquet"
    if manifest.status != "complete":
        why = f"the run {'died' if manifest.status == 'died' else 'was interrupted'}"
        why += f": {manifest.died_of}" if manifest.died_of else ""
        return Check(id="completeness", state="void", value=answered, unit="requests", source=source, why=why)
    if not answered:
        return Check(
            id="completeness", state="void", value=0, unit="requests", source=source, why="no request was answered"
        )
    planned = manifest.workload.requests
    if planned and len(cell.measured) < planned:
        why = f"{len(cell.measured)} of {planned} planned requests have a row"
        return Check(id="completeness", state="suspect", value=answered, unit="requests", source=source, why=why)
    why = f"the run is complete, {answered} of {len(cell.measured)} measured requests were answered"
    return Check(id="completeness", state="ok", value=answered, unit="requests", source=source, why=why)


def _tables(cell: Cell) -> Check:
    missing = [name for name in TABLES if not cell.dir.has_table(name)]
    why = f"missing: {', '.join(f'{name}.parquet' for name in missing)}" if missing else "all tables are there"
    if cell.workload_why:
        why += f"; {cell.workload_why}"
    needed = {"requests", "chunks"} & set(missing)
    state: CheckState = "void" if "requests" in needed else "suspect" if missing else "ok"
    return Check(id="tables", state=state, value=len(missing), unit="tables", source="the cell's directory", why=why)


def _failures(cell: Cell) -> Check:
    total = len(cell.measured)
    failed = cell.failed
    share = len(failed) / total if total else 0.0
    kinds = sorted({f"{status} ({kind})" for status, kind in zip(failed["status"], failed["error_kind"], strict=True)})
    why = f"{len(failed)} of {total} requests failed" + (f": {', '.join(kinds[:4])}" if kinds else "")
    return Check(
        id="failures",
        state=_above(share, FAILURES),
        value=share,
        unit="1",
        limits=_limits(FAILURES),
        source="requests.parquet: status error, timeout, refused",
        why=why,
    )


def _client_lateness(measured: dict[str, Measured], error: ClientError) -> Check:
    """The client's part of TTFT and TPOT, each against the median of what it is added to."""
    shares = []
    for late, metric in ((error.ttft_p99, "ttft"), (error.tpot_p99, "tpot")):
        median = measured[metric].estimate(0.5)
        if late is not None and median is not None and median.value > 0:
            shares.append((abs(late) / median.value, metric, late))
    source = "chunks.parquet: t_arrival - t_kernel"
    if not shares:
        return Check(id="client_lateness", state="ok", source=source, why=f"not checked: {error.why or 'no medians'}")
    share, metric, late = max(shares)
    return Check(
        id="client_lateness",
        state=_above(share, CLIENT_SHARE),
        value=share,
        unit="1",
        limits=_limits(CLIENT_SHARE),
        source=source,
        why=f"the client adds {late * 1e3:.2g} ms (P99) to {metric.upper()}, {share:.1%} of its median",
    )


def _loop_lag(cell: Cell) -> Check:
    lags = [worker.loop_lag_p99_ms for worker in cell.manifest.workers if worker.loop_lag_p99_ms is not None]
    source = "manifest.json: workers.loop_lag_p99_ms"
    if not lags:
        return Check(id="loop_lag", state="ok", source=source, why="not checked: no client process reported its lag")
    return Check(
        id="loop_lag",
        state=_above(max(lags), LOOP_LAG_MS),
        value=max(lags),
        unit="ms",
        limits=_limits(LOOP_LAG_MS),
        source=source,
        why=f"the client's event loop was up to {max(lags):.1f} ms late (P99 of the worst of {len(lags)} processes)",
    )


def _load(cell: Cell) -> Check:
    if cell.load_mode in CLOSED_LOADS:
        return _closed_load(cell)
    source = "requests.parquet: t_sent against t_intended"
    rows = cell.measured
    pairs = np.isfinite(rows["t_sent"]) & np.isfinite(rows["t_intended"])
    sent, intended = rows["t_sent"][pairs], rows["t_intended"][pairs]
    wanted, took = (np.ptp(intended), np.ptp(sent)) if pairs.sum() >= 2 else (0.0, 0.0)
    if wanted <= 0 or took <= 0:
        return Check(id="load", state="ok", source=source, why="not checked: fewer than two scheduled sends")
    ratio = float(wanted / took)
    late = np.sort(sent - intended)
    p99 = late[rank_of(len(late), 0.99) - 1]
    return Check(
        id="load",
        state="void" if ratio < RATE_SHORT[1] else "suspect" if ratio < RATE_SHORT[0] else "ok",
        value=ratio,
        unit="1",
        limits=_limits(RATE_SHORT),
        source=source,
        why=f"{ratio:.1%} of the intended rate was sent, sends were up to {p99 * 1e3:.2g} ms late (P99)",
    )


def _closed_load(cell: Cell) -> Check:
    source = "requests.parquet: requests in flight over the steady window"
    window, wanted = steady_window(cell), cell.in_flight
    reached = mean_in_flight(cell.requests, window.begin, window.end) if window else None
    if reached is None or not wanted or cell.load_mode != "closed":
        return Check(id="load", state="ok", source=source, why="not checked: no closed load with a number in flight")
    ratio = reached / wanted
    return Check(
        id="load",
        state="ok" if ratio >= HEIGHT_SHORT else "suspect",
        value=ratio,
        unit="1",
        limits={"suspect": HEIGHT_SHORT},
        source=source,
        why=f"{reached:.1f} requests in flight on average, {wanted} wanted",
    )


def _scrapes(cell: Cell, signals: Signals) -> Check:
    errors, good = cell.manifest.scrape_errors, signals.scrapes
    source = "manifest.json: scrape_errors, server.parquet"
    if not good:
        why = f"no scrape succeeded, {errors} failed" if errors else "not checked: the engine was not scraped"
        return Check(id="scrapes", state="suspect" if errors else "ok", value=errors, source=source, why=why)
    share = errors / (errors + good)
    return Check(
        id="scrapes",
        state=_above(share, SCRAPE_ERRORS),
        value=share,
        unit="1",
        limits={"suspect": SCRAPE_ERRORS[0]},
        source=source,
        why=f"{errors} of {errors + good} scrapes failed",
    )


def _restart(signals: Signals) -> Check:
    resets = signals.resets
    return Check(
        id="restart",
        state="void" if resets else "ok",
        value=resets,
        unit="resets",
        source="server.parquet: counters that fall",
        why=f"counters fell {resets} times: the engine restarted in the run" if resets else "no counter ever fell",
    )


def _reconciled(lines: list[Line]) -> Check:
    wrong = [line for line in lines if line.state == "differs"]
    checked = [line for line in lines if line.state != "not_observable"]
    source = "requests.parquet against the growth of the engine's counters"
    if wrong:
        why = "; ".join(f"{line.what}: client {line.client:,}, engine {line.engine:,}, {line.why}" for line in wrong)
        return Check(id="reconcile", state="suspect", value=len(wrong), unit="sums", source=source, why=why)
    if not checked:
        return Check(id="reconcile", state="ok", source=source, why=f"not checked: {lines[0].why if lines else ''}")
    equal = [line.what for line in checked if line.state == "equal"]
    rest = [f"{line.what} ({line.why})" for line in checked if line.state == "explained"]
    why = f"equal on both sides: {', '.join(equal) or 'none'}" + (f"; explained: {', '.join(rest)}" if rest else "")
    return Check(id="reconcile", state="ok", value=0, unit="sums", source=source, why=why)


def _steadiness(cell: Cell, measured: dict[str, Measured]) -> Check:
    """TPOT of the first third of the steady window against the last, by size and, if that differs, by a rank test."""
    source = "TPOT in the first and the last third of the steady window"
    window, found = steady_window(cell), measured["tpot"].samples
    if window is None or len(found.values) < 30:
        return Check(id="steady", state="ok", source=source, why="not checked: fewer than 30 requests with a TPOT")
    inside = (found.times >= window.begin) & (found.times <= window.end)
    values, at = found.values[inside], (found.times[inside] - window.begin) / window.seconds
    early, late = values[at < 1 / 3], values[at >= 2 / 3]
    if min(len(early), len(late)) < 8 or np.median(early) <= 0:
        return Check(
            id="steady", state="ok", source=source, why="not checked: too few requests in a third of the window"
        )
    ratio = float(np.median(late) / np.median(early))
    why = f"TPOT in the last third is {ratio:.2f} times that in the first"
    drifted = False
    if max(ratio, 1 / ratio) > DRIFT:
        from scipy.stats import mannwhitneyu  # takes two seconds to import

        p = float(mannwhitneyu(early, late).pvalue)
        drifted = p < DRIFT_P
        why += f" (p = {p:.2g})"
    return Check(
        id="steady",
        state="suspect" if drifted else "ok",
        value=ratio,
        unit="1",
        limits={"suspect": DRIFT, "p": DRIFT_P},
        source=source,
        why=why,
    )


def _cache(cell: Cell) -> Check:
    proof = cell.manifest.cache
    fine = proof.proven or proof.state == "warm"
    why = f"cache {proof.state} by {proof.method}: {'shown by' if proof.proven else 'not shown;'} {proof.evidence}"
    return Check(id="cache_state", state="ok" if fine else "suspect", source="manifest.json: cache", why=why)


def _counting(cell: Cell) -> Check:
    rows = cell.ok
    share = float((rows["token_source"] == "text").mean()) if len(rows) else 0.0
    return Check(
        id="token_counts",
        state=_above(share, TEXT_COUNTS),
        value=share,
        unit="1",
        limits={"suspect": TEXT_COUNTS[0]},
        source="requests.parquet: token_source",
        why=f"{share:.0%} of answers had to be counted from their text" if share else "counts come from ids or usage",
    )


def _lengths(cell: Cell) -> Check:
    """Answers that were to have a fixed length must have it, or engines were given different work."""
    source = "requests.parquet: output_tokens against max_tokens"
    if cell.workload is None:
        return Check(id="answer_lengths", state="ok", source=source, why=f"not checked: {cell.workload_why}")
    fixed = {request.request_id for request in cell.workload.requests if request.ignore_eos}
    rows = cell.ok
    judged = np.asarray([name in fixed for name in rows["request_id"]], dtype=bool) & np.isfinite(rows["output_tokens"])
    short = int((rows["output_tokens"][judged] < rows["max_tokens"][judged]).sum())
    why = (
        f"{short} of {int(judged.sum())} answers ended before their fixed length" if short else "all have their length"
    )
    return Check(
        id="answer_lengths", state="suspect" if short else "ok", value=short, unit="answers", source=source, why=why
    )
