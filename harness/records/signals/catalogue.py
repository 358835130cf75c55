"""The catalogue of signals: which metric of which engine says what, kept as data in the TOML files beside this one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from harness.records.errors import UsageError
from harness.records.signals.witness import Canonical, Reading, SampleLike, Witness, index, read

KINDS = ("vllm", "sglang", "native")
LISTS = ("plus", "traps")


@dataclass(frozen=True)
class AbsentSignal:
    """Why an engine has no metric of a signal, and what would show it instead."""

    why: str
    flag: str = ""


@dataclass(frozen=True)
class Drift:
    """How a server's names differ from the catalogue's. Names on the wire, sorted."""

    lacking: tuple[str, ...]  # expected without any flag, not exported
    unknown: tuple[str, ...]  # exported under the engine's prefix, in no list of the catalogue
    outdated: Mapping[str, str]  # exported names of older releases, and what took their place


@dataclass(frozen=True)
class Catalogue:
    """All that is known of one engine's metrics. Same object for every caller; nothing in it changes."""

    kind: str
    namespace: str
    verified: str  # the release whose pages the entries were read from
    oldest: str
    freshness: str
    gate: str  # the flag without which there is no metrics page at all
    known: frozenset[str]
    renamed: Mapping[str, str]
    witnesses: Mapping[str, tuple[Witness, ...]]
    absent: Mapping[str, AbsentSignal]

    @staticmethod
    def load(kind: str) -> Catalogue:
        """UsageError for a kind whose metrics are not known."""
        if kind not in KINDS:
            raise UsageError(f"no catalogue of metrics for engine kind {kind!r}", mend=f"known are {', '.join(KINDS)}")
        return _load(kind)

    def signal(self, name: str) -> tuple[Witness, ...]:
        """Its witnesses, the one to be read first; empty where the engine has none. UsageError for no such signal."""
        if name not in canonical():
            raise UsageError(f"no signal {name!r}", mend="the names stand in harness/records/signals/canonical.toml")
        return self.witnesses.get(name, ())

    def signals(self, version: str | None = None) -> dict[str, tuple[Witness, ...]]:
        """Every canonical signal with the witnesses that a release exports; without a version, all of them."""
        return {
            name: tuple(one for one in self.witnesses.get(name, ()) if version is None or _in_range(one, version))
            for name in canonical()
        }

    def resolve(
        self, samples: Iterable[SampleLike], version: str | None = None, *, live: bool = False
    ) -> dict[str, Reading]:
        """Every canonical signal as one scrape shows it. The first witness that is there is the one that speaks.

        live: for windows shorter than a request, in which a witness that counts when requests finish says nothing of
        those that run. Such witnesses then speak only if there is no other.
        """
        rows = index(samples)
        found: dict[str, Reading] = {}
        for name, witnesses in self.signals(version).items():
            if live:
                witnesses = tuple(sorted(witnesses, key=lambda witness: witness.late))
            readings = (read(witness, rows) for witness in witnesses)
            reading = next((one for one in readings if one is not None), None)
            found[name] = reading or self._missing(name, witnesses)
        return found

    def witnesses_read(self, name: str, samples: Iterable[SampleLike]) -> list[Reading]:
        """What each witness of a signal says; those that are not exported are left out."""
        rows = index(samples)
        readings = (read(witness, rows) for witness in self.signal(name))
        return [one for one in readings if one is not None]

    def drift(self, samples: Iterable[SampleLike]) -> Drift:
        """Names that the server lacks, has beside the known ones, or still has from before."""
        present = {_family(sample.metric, self.known, self.namespace) for sample in samples}
        first = [witnesses[0] for witnesses in self.witnesses.values() if witnesses]
        expected = {
            one.family for one in first if not one.flag and not one.lazy and one.family.startswith(self.namespace)
        }
        ours = {name for name in present if name.startswith(self.namespace)}
        old = {name: self.renamed[name] for name in sorted(ours) if name in self.renamed}
        unknown = {name for name in ours if name.removeprefix(self.namespace) not in self.known} - set(old)
        return Drift(tuple(sorted(expected - present)), tuple(sorted(unknown)), old)

    def _missing(self, name: str, witnesses: tuple[Witness, ...]) -> Reading:
        signal = canonical()[name]
        if not witnesses:
            stated = self.absent.get(name, AbsentSignal("this release exports no metric for it"))
            return Reading(signal, why=stated.why, flag=stated.flag)
        first = witnesses[0]
        what = " or ".join(dict.fromkeys(one.family for one in witnesses))
        if first.lazy and not first.flag:
            return Reading(signal, why=f"{what} appears with its first event, and none has come", unborn=True)
        return Reading(signal, why=f"the server does not export {what}", flag=first.flag)


@cache
def canonical() -> dict[str, Canonical]:
    """Every signal by name, in the order of the stages."""
    return {name: Canonical(name=name, **entry) for name, entry in _document("canonical").items()}


@cache
def _load(kind: str) -> Catalogue:
    document = _document(kind)
    witnesses = {
        name: tuple(_witness(canonical()[name], entry) for entry in entries)
        for name, entries in document["signal"].items()
    }
    return Catalogue(
        kind=kind,
        namespace=document["namespace"],
        verified=document["verified"],
        oldest=document["oldest"],
        freshness=document["freshness"],
        gate=document.get("gate", ""),
        known=frozenset(document["known"]),
        renamed=document.get("renamed", {}),
        witnesses=witnesses,
        absent={name: AbsentSignal(**entry) for name, entry in document.get("absent", {}).items()},
    )


def _document(name: str) -> dict[str, Any]:
    return tomllib.loads(files("harness.records.signals").joinpath(f"{name}.toml").read_text("utf-8"))


def _witness(signal: Canonical, entry: Mapping[str, Any]) -> Witness:
    values: dict[str, Any] = {key: tuple(value) if key in LISTS else value for key, value in entry.items()}
    where = {label: tuple(accepted) for label, accepted in entry.get("where", {}).items()}
    return Witness(**{**values, "signal": signal, "where": where})


def release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with: "0.32.0rc1+cpu" is (0, 32, 0); empty if it begins with none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _in_range(witness: Witness, version: str) -> bool:
    """Whether a release is between `since` and `until`, the last that exports the name; an odd version is in range."""
    number = release(version)
    if not number:
        return True
    until = release(witness.until)
    return number >= release(witness.since) and (not until or number[: len(until)] <= until)


def _family(metric: str, known: frozenset[str], namespace: str) -> str:
    """The family of a sample. A suffix is cut only if that gives a known name: `_total` and `_sum` may be its own."""
    if metric.removeprefix(namespace) in known:
        return metric
    for suffix in ("_bucket", "_sum", "_count", "_created"):
        family = metric.removesuffix(suffix)
        if family == metric:
            continue
        # A counter's `_created` stands beside a name that ends in `_total`.
        for name in (family, f"{family}_total") if suffix == "_created" else (family,):
            if name.removeprefix(namespace) in known:
                return name
        return family
    return metric
