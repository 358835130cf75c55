"""The cache state of a cell: brought about, proven where that can be, and written down either way."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from harness.cli.jobs.session import Session
from harness.records.manifest import CacheProof, CacheState


@dataclass(frozen=True)
class Isolation:
    proof: CacheProof
    salt: str | None = None


def isolate(session: Session, state: CacheState, cell: str) -> Isolation:
    """Bring the engine's prefix cache to `state` before a cell.

    Where a flush is asked for and the engine has no way or refuses, prompts get a salt of this cell's own if the
    engine takes one, since a cell that hits what an earlier one left is wrong and looks right.
    """
    if state == "salted":
        return _salted(cell, "asked for by the plan")
    if state == "fresh":
        return Isolation(
            CacheProof(state="fresh", method="restart", proven=True, evidence="the engine was started for this cell")
        )
    proof = session.engine.reset_cache(session.endpoint, state)
    if state == "flushed" and not proof.proven and session.engine.capabilities.salt:
        return _salted(cell, f"instead of a flush: {proof.evidence}")
    return Isolation(proof)


def _salted(cell: str, why: str) -> Isolation:
    salt = f"{cell}-{secrets.token_hex(8)}"
    proof = CacheProof(
        state="salted", method="salt", proven=True, evidence=f"every prompt of this cell carries its own salt, {why}"
    )
    return Isolation(proof, salt)
