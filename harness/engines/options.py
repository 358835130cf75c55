"""Canonical options of an `[[engine]]`, checked once and translated by each adapter through a table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from harness.engines.profiles import profile_args, profile_environ
from harness.engines.protocol import EngineConfig
from harness.records.errors import UsageError

HIDDEN = "(hidden)"
_SECRET = re.compile(r"--[\w-]*(?:api-key|api_key|token|secret|password)")
COUNTS = ("block_size", "kv_tokens", "max_model_len", "max_num_seqs", "max_batched_tokens", "threads")
KNOWN: Mapping[str, type] = {
    **dict.fromkeys(COUNTS, int),
    "prefix_caching": bool,
    "dtype": str,
    "device": str,  # cpu | cuda …; left out, an environment whose name ends in -cpu is a CPU build
    "profile": str,
}


def check_options(config: EngineConfig, honoured: Sequence[str]) -> dict[str, Any]:
    """The options as a dict, or UsageError that names every one this kind of engine cannot honour."""
    options = dict(config.options)
    where = f"engine {config.name!r} ({config.kind})"
    unknown = [name for name in options if name not in KNOWN]
    if unknown:
        raise UsageError(f"{where}: unknown options {', '.join(sorted(unknown))}", mend=f"known are {', '.join(KNOWN)}")
    unfit = [name for name in options if name not in honoured]
    if unfit:
        raise UsageError(
            f"{where} cannot honour the options {', '.join(sorted(unfit))}", mend=f"it takes {', '.join(honoured)}"
        )
    for name, value in options.items():
        kind = KNOWN[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UsageError(f"{where}: option {name} = {value!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise UsageError(f"{where}: option {name} = {value} is below 1")
    return options


def flags(options: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """`--flag value` for each option that is set, in the order of the table."""
    return [part for option, flag in names.items() if option in options for part in (flag, str(options[option]))]


def on_cpu(config: EngineConfig) -> bool:
    """Whether this engine is a CPU build: the option `device` decides, else the environment's name."""
    device = config.options.get("device")
    return device == "cpu" if device is not None else bool(config.env and config.env.endswith("-cpu"))


def interpreter(config: EngineConfig) -> str:
    """The Python that runs the engine; UsageError if the plan gives none."""
    if config.python:
        return config.python
    raise UsageError(
        f"engine {config.name!r} has no environment to start from",
        mend=f"servescope engines install {config.kind}, or give env = or url =",
    )


def evidence(config: EngineConfig) -> tuple[list[str], dict[str, str]]:
    """Flags and environment of the evidence profile."""
    return profile_args(config.kind, config.evidence), profile_environ(config.kind, config.evidence)


def redacted(argv: Sequence[str]) -> list[str]:
    """A command line without the values of flags that carry a secret (`--api-key K`, `--hf-token=T`)."""
    kept: list[str] = []
    for part in argv:
        if kept and _SECRET.fullmatch(kept[-1]) and not part.startswith("--"):
            kept.append(HIDDEN)
        else:
            flag, equals, _ = part.partition("=")
            kept.append(f"{flag}={HIDDEN}" if equals and _SECRET.fullmatch(flag) else part)
    return kept


def shown(argv: Sequence[str]) -> str:
    """A command line as a person would type it, secrets hidden."""
    return shlex.join(redacted(argv))
