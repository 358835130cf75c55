"""`model`, `engines` and `serve`: what has to be there before a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

STATE_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


def model_get_command(name: str, *, as_json: bool) -> int:
    from harness.models.store import describe_model, get_model

    model = get_model(name, progress=_say)
    info = describe_model(model)
    if as_json:
        print(info.model_dump_json())
    else:
        print(f"{info.name}: {info.path} (vocabulary {info.vocab_size}, weights sha256 {info.weights_sha256})")
    return 0


def engines_list_command(*, as_json: bool) -> int:
    from harness.engines.store import list_engines

    rows = list_engines()
    if as_json:
        print(json.dumps([row.model_dump() for row in rows]))
        return 0
    if not rows:
        print("no environments; `servescope engines install vllm --device cpu` makes one")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "kind", "version", "device", "python"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.name, row.kind, row.version or "?", row.device or "yours", row.python)
    Console().print(table)
    return 0


def engines_doctor_command(*, as_json: bool) -> int:
    """Exit code 5 when a finding stands in the way of a run."""
    from harness.engines.doctor import doctor

    rows = doctor()
    failed = any(row.state == "fail" for row in rows)
    if as_json:
        print(json.dumps([row.model_dump() for row in rows]))
        return 5 if failed else 0
    console = Console()
    for row in rows:
        line = Text.assemble((f"{row.state:5}", STATE_STYLE[row.state]), f"{row.subject}: {row.check}: {row.detail}")
        if row.mend:
            line.append(f"; {row.mend}", style="bold")
        console.print(line)
    return 5 if failed else 0


def engines_install_command(
    engine: str, *, device: str, version: str | None, torch_index: str | None, as_json: bool
) -> int:
    from harness.engines.install import install

    env = install(engine, version=version, device=device, torch_index=torch_index, progress=_say)
    print(env.model_dump_json() if as_json else f"{env.name}: {env.kind} {env.version} is ready ({env.python})")
    return 0


def engines_add_command(name: str, *, kind: str, python: Path, as_json: bool) -> int:
    from harness.engines.store import add_engine

    env = add_engine(name, kind, python)
    print(env.model_dump_json() if as_json else f"{env.name}: {env.kind} {env.version} added")
    return 0


def serve_native_command(arguments: Sequence[str]) -> int:
    """Become the native core's server: same process id, so that whoever started it can stop it."""
    from harness.models.store import find_model

    words = list(arguments)
    if "--model" in words[:-1]:
        at = words.index("--model") + 1
        model = find_model(words[at])
        words[at] = str(model.path)
        if "--served-model-name" not in words:
            words += ["--served-model-name", model.name]
    argv = [sys.executable, "-m", "native_core", *words]
    os.execv(sys.executable, argv)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
