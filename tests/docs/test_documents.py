"""Documents say what is true: commands run, links lead somewhere, figures are those of the committed results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
COMMAND = re.compile(r"servescope ((?:[a-z]+ ?){1,2})")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_console_blocks_run(document: Path, tmp_path: Path) -> None:
    """Blocks of one document run in order in one folder, as someone who follows it would."""
    blocks = CONSOLE.findall(document.read_text())
    if not blocks:
        return
    shutil.copytree(ROOT / "plans", tmp_path / "plans")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "SERVESCOPE_CACHE": str(tmp_path / "cache")}
    for line in "".join(blocks).splitlines():
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{document.name}: {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_named_exist(document: Path) -> None:
    import typer.main

    from harness.cli import commands

    tree = typer.main.get_command(commands.app)
    top = set(tree.commands)  # type: ignore[attr-defined]
    for words in COMMAND.findall("\n".join(re.findall(r"`[^`]+`|^servescope .*$", document.read_text(), re.MULTILINE))):
        first = words.split()[0]
        assert first in top, f"{document.name}: servescope {words}"


def test_every_file_of_the_native_core_has_its_line() -> None:
    text = (ROOT / "docs" / "native-core.md").read_text()
    core = ROOT / "native_core"
    modules = {path.name for path in core.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"native_core/{path.parent.name}/" for path in core.glob("*/__init__.py")}
    assert {name for name in modules | folders if name not in text} == set()


def test_the_case_in_the_readme_is_the_committed_result() -> None:
    readme = " ".join(line.removeprefix("> ") for line in (ROOT / "README.md").read_text().splitlines())
    results = ROOT / "docs" / "results" / "first-token-differs"
    differs = json.loads((results / "expected.first-token-differs.json").read_text())
    twin = json.loads((results / "expected.suffix-differs.json").read_text())
    assert differs["explanation"] in readme
    assert (differs["total"]["low"], differs["total"]["usage"], differs["total"]["counters"]) == (0, 0, 0)
    numbers = {twin["total"][key] for key in ("low", "high", "usage", "counters")}
    assert len(numbers) == 1
    assert f"expected {numbers.pop():,} cached tokens (block {twin['block_size']})" in readme
