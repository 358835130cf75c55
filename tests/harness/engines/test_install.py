"""Installing, adopting, repairing and listing environments: real venvs, small recipes, no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from harness.engines import install as installing
from harness.engines import kit as kits
from harness.engines.doctor import doctor
from harness.engines.interpreter import find_python
from harness.engines.kit import ENGINES, Kit, load_kit, stand_in_source
from harness.engines.store import add_engine, engines_root, find_engine, half_made, list_engines, read_marker
from harness.records.errors import InfrastructureError, UsageError

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the recipe by one without packages, so that only what surrounds pip is run."""

    def use(**changes: object) -> None:
        small = replace(load_kit("sglang"), python=HERE, disk_gib=0.05, steps=(), import_name="sgl_kernel", **changes)  # type: ignore[arg-type]
        monkeypatch.setattr(installing, "load_kit", lambda *_: small)

    return use


@pytest.fixture
def quick_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments without pip: making one then takes milliseconds."""
    real = subprocess.run

    def run(argv: list[str], *rest: object, **named: object) -> subprocess.CompletedProcess[str]:
        if argv[1:3] == ["-m", "venv"]:
            argv = [*argv[:3], "--without-pip", *argv[3:]]
        return real(argv, *rest, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(installing.subprocess, "run", run)


@pytest.mark.parametrize("engine", ENGINES)
def test_recipes_are_whole(engine: str) -> None:
    kit = load_kit(engine)
    assert kit.version in kit.versions
    assert kit.disk_gib > 1
    assert all(step.why and step.packages for step in kit.steps)
    packages = [package for step in kit.steps for package in step.packages]
    assert not any("{" in package for package in packages)
    assert any(kit.version in package for package in packages)
    for name in kit.stand_ins:
        compile(stand_in_source(name), name, "exec")


def test_no_recipe_names_a_host() -> None:
    folder = files(kits.__package__).joinpath("kits")
    for entry in folder.iterdir():
        if entry.name.endswith(".toml"):
            assert not re.search(r"https?:|www\.|\.(org|com|io)\b", entry.read_text("utf-8")), entry.name


@pytest.mark.parametrize(
    ("engine", "version", "device"), [("tgi", None, "cpu"), ("vllm", "9", "cpu"), ("vllm", None, "cuda")]
)
def test_what_there_is_no_recipe_for(engine: str, version: str | None, device: str) -> None:
    with pytest.raises(UsageError):
        load_kit(engine, version, device)


@pytest.mark.usefixtures("quick_venv")
def test_install_list_find_and_again(recipe: Callable[..., None], cache: Path) -> None:
    recipe()
    said: list[str] = []
    env = installing.install("sglang", progress=said.append)
    assert said
    assert env.name == "sglang-0.5.23-cpu"
    assert Path(env.python).is_relative_to(cache)
    assert [row.name for row in list_engines()] == [env.name]
    assert find_engine(env.name) == env == find_engine("sglang")
    said.clear()
    assert installing.install("sglang", progress=said.append) == env
    assert said == []  # nothing was done


@pytest.mark.usefixtures("quick_venv")
def test_a_changed_stand_in_is_put_back(recipe: Callable[..., None]) -> None:
    recipe()
    env = installing.install("sglang")
    module = next(engines_root().glob("*/lib/*/site-packages/sgl_kernel.py"))
    module.write_text("def silu_and_mul(*a): return 0\n")
    assert installing.install("sglang").stand_ins == env.stand_ins
    assert module.read_bytes() == stand_in_source("sgl_kernel")


@pytest.mark.usefixtures("quick_venv")
def test_one_that_does_not_import_is_never_listed(recipe: Callable[..., None]) -> None:
    recipe(stand_ins=())
    with pytest.raises(InfrastructureError, match="does not import"):
        installing.install("sglang")
    assert list_engines() == []
    assert [path.name for path in half_made()] == ["sglang-0.5.23-cpu"]
    assert any(row.check == "marker" and row.state == "fail" and "install sglang" in row.mend for row in doctor())
    recipe()  # what stopped it is mended: the next one finishes the same environment
    assert installing.install("sglang").name == "sglang-0.5.23-cpu"
    assert half_made() == []


@pytest.mark.usefixtures("quick_venv")
def test_a_real_package_is_not_hidden(recipe: Callable[..., None]) -> None:
    recipe()
    directory = Path(installing.install("sglang").python).parent.parent
    (directory / "engine.json").unlink()
    real = next(directory.glob("lib/*/site-packages")) / "sgl_kernel"
    real.mkdir()
    with pytest.raises(UsageError, match="real sgl_kernel"):
        installing.install("sglang")


def test_disk_is_checked_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = replace(load_kit("sglang"), python=HERE, disk_gib=1e6)
    monkeypatch.setattr(installing, "load_kit", lambda *_: huge)
    with pytest.raises(InfrastructureError, match=r"GiB are free.*SERVESCOPE_CACHE"):
        installing.install("sglang")
    assert not (engines_root() / huge.name).exists()


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "load_kit", lambda *_: replace(load_kit("sglang"), python="3.99"))
    with pytest.raises(InfrastructureError, match=r"needs Python 3\.99"):
        installing.install("sglang")
    assert find_python("3.99") is None


@pytest.mark.usefixtures("quick_venv")
def test_a_failing_pip_is_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    def kit(*_: object) -> Kit:
        return replace(load_kit("vllm"), python=HERE, disk_gib=0.05)

    monkeypatch.setattr(installing, "load_kit", kit)
    with pytest.raises(InfrastructureError, match=r"pip failed .*No module named pip.*--torch-index") as caught:
        installing.install("vllm")
    assert "\n" not in str(caught.value)
    assert list_engines() == []


@pytest.mark.usefixtures("quick_venv")
def test_two_at_once_make_one(recipe: Callable[..., None]) -> None:
    recipe()
    made: list[object] = []
    threads = [threading.Thread(target=lambda: made.append(installing.install("sglang"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert made[0] == made[1]


def test_an_unwritable_cache_has_a_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="SERVESCOPE_CACHE"):
        installing.install("sglang")


def test_added_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "gpu" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    package = tmp_path / "site" / "vllm-9.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.1\n")
    code = f"import sys; sys.path.append('{tmp_path}/site'); exec(sys.argv[1])"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "{code}" "$2"\n')
    fake.chmod(0o755)
    env = add_engine("my-gpu", "vllm", fake)
    assert (env.version, env.kind, env.added) == ("9.1", "vllm", True)
    assert find_engine("my-gpu").python == str(fake)
    assert any(row.subject == "my-gpu" and row.check == "version" for row in doctor(imports=False))


def test_what_cannot_be_added(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="interpreter"):
        add_engine("x", "vllm", tmp_path / "nothing")
    with pytest.raises(UsageError, match="no vllm installed"):
        add_engine("x", "vllm", sys.executable)
    with pytest.raises(UsageError, match="vllm, sglang"):
        add_engine("x", "tgi", sys.executable)
    with pytest.raises(UsageError, match="no name"):
        add_engine("../x", "vllm", sys.executable)
    assert list_engines() == []


def test_an_unknown_environment_has_a_mend() -> None:
    with pytest.raises(UsageError, match="engines install vllm"):
        find_engine("vllm-0.32.0-cpu")


def test_a_damaged_marker_is_half_made(cache: Path) -> None:
    directory = cache / "engines" / "vllm-0.32.0-cpu"
    directory.mkdir(parents=True)
    (directory / "pyvenv.cfg").write_text("")
    (directory / "engine.json").write_text('{"schema_version": 99}')
    assert read_marker(directory) is None
    assert half_made() == [directory]
    assert list_engines() == []


def test_doctor_speaks_of_the_machine_and_of_what_is_missing() -> None:
    rows = doctor()
    assert {"disk", "open files"} <= {row.check for row in rows if row.subject == "machine"}
    assert {row.subject for row in rows if row.check == "installed"} == set(ENGINES)
    assert all(row.mend for row in rows if row.state != "ok" and row.check == "installed")


def test_a_stand_in_that_is_called_raises_and_leaves_a_trace(tmp_path: Path) -> None:
    (tmp_path / "sgl_kernel.py").write_bytes(stand_in_source("sgl_kernel"))
    calls = tmp_path / "calls.txt"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "SERVESCOPE_STAND_IN_CALLS": str(calls)}

    def python(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)

    assert (
        python("from sgl_kernel import silu_and_mul, anything; import sgl_kernel; sgl_kernel.__path__").returncode == 1
    )
    assert python("from sgl_kernel import silu_and_mul, anything").returncode == 0
    assert not calls.exists()
    called = python("from sgl_kernel import silu_and_mul; silu_and_mul(1)")
    assert "RuntimeError" in called.stderr
    assert calls.read_text() == "silu_and_mul\n"
