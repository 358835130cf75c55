"""Installs a CPU build of a real engine into an environment of its own. May be run again at any time.

Order: recipe, Python, lock, disk, venv, packages, removals, stand-ins, import check, and last the marker. An
environment without its marker is not listed, so whatever stops an installation leaves nothing that a run would start;
the next installation goes on from what is there, since pip keeps what is already right.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.engines.interpreter import (
    find_python,
    import_fault,
    installed_version,
    packages_sha256,
    python_version,
    site_packages,
)
from harness.engines.kit import Kit, Step, load_kit, stand_in_source
from harness.engines.store import EngineEnv, engines_root, read_marker, write_marker
from harness.records.errors import InfrastructureError, UsageError
from harness.records.rundir import utc_now

Progress = Callable[[str], None]


def install(
    engine: str,
    version: str | None = None,
    device: str = "cpu",
    torch_index: str | None = None,
    progress: Progress | None = None,
) -> EngineEnv:
    """The environment `<engine>-<version>-<device>`, made or finished; at once if its marker says that it is right.

    `torch_index` is the URL of an index that carries PyTorch's CPU builds. UsageError for what there is no recipe
    for; InfrastructureError if Python, disk, pip or the import fails, with the mend.
    """
    kit = load_kit(engine, version, device)
    say = progress or (lambda _: None)
    directory = engines_root() / kit.name
    with _locked(directory, say):
        ready = read_marker(directory)
        if ready is not None and _intact(kit, ready):
            return ready
        python = _make_venv(kit, directory, say)
        for step in kit.steps:
            say(f"{kit.name}: {step.why}")
            _pip_install(kit, python, step, torch_index, directory)
        if kit.remove:
            _pip(python, ["uninstall", "--yes", "--quiet", *kit.remove], kit, directory)
        stand_ins = _place_stand_ins(kit, python)
        say(f"{kit.name}: checking that it imports")
        fault = import_fault(python, kit.import_name)
        if fault is not None:
            raise InfrastructureError(
                f"{kit.name} is installed but {kit.import_name} does not import: {fault}",
                mend=f"remove {directory} and install again",
            )
        env = EngineEnv(
            name=kit.name,
            kind=kit.kind,
            python=python,
            version=installed_version(python, kit.kind),
            device=kit.device,
            python_version=python_version(python),
            packages_sha256=packages_sha256(python),
            stand_ins=stand_ins,
            installed_utc=utc_now(),
        )
        write_marker(directory, env)
        return env


def _intact(kit: Kit, env: EngineEnv) -> bool:
    """Whether a marked environment is still what the recipe makes: same packages, same stand-ins, in place."""
    wanted = {name: hashlib.sha256(stand_in_source(name)).hexdigest() for name in kit.stand_ins}
    if env.stand_ins != wanted or env.packages_sha256 != packages_sha256(env.python):
        return False
    where = site_packages(env.python)
    return where is not None and all(_digest(where / f"{name}.py") == digest for name, digest in wanted.items())


@contextmanager
def _locked(directory: Path, say: Progress) -> Iterator[None]:
    """One installation at a time per environment; a second one waits and then finds the work done."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = (directory.parent / f".{directory.name}.lock").open("w")
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {directory.parent}: {error.strerror}", mend="set SERVESCOPE_CACHE to a directory you own"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{directory.name}: another installation is under way, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_venv(kit: Kit, directory: Path, say: Progress) -> str:
    """The interpreter of the environment's venv, made if it is missing or broken."""
    python = directory / "bin" / "python"
    if (python_version(str(python)) or "").startswith(f"{kit.python}."):
        return str(python)
    base = find_python(kit.python)
    if base is None:
        raise InfrastructureError(
            f"the recipe for {kit.kind} {kit.version} needs Python {kit.python}, and none was found",
            mend=f"install python{kit.python} so that it is on the PATH",
        )
    _check_disk(kit, directory.parent)
    say(f"{kit.name}: making an environment with Python {kit.python}")
    done = subprocess.run([base, "-m", "venv", "--clear", str(directory)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise InfrastructureError(f"no environment could be made in {directory}: {last}", mend="check its disk")
    return str(python)


def _check_disk(kit: Kit, where: Path) -> None:
    """InfrastructureError if fewer GiB are free than the recipe takes, a fifth more for pip's temporary files."""
    free = shutil.disk_usage(where).free / 2**30
    need = kit.disk_gib * 1.2
    if free < need:
        raise InfrastructureError(
            f"{kit.name} needs {need:.1f} GiB in {where}, {free:.1f} GiB are free",
            mend="free some space or set SERVESCOPE_CACHE to another disk",
        )


def _pip_install(kit: Kit, python: str, step: Step, torch_index: str | None, directory: Path) -> None:
    argv = ["install", "--quiet", "--no-input", *(["--no-deps"] if step.no_deps else [])]
    if torch_index:
        argv += ["--extra-index-url", torch_index]
    _pip(python, [*argv, *step.packages], kit, directory, hint=_torch_hint(kit, torch_index))


def _torch_hint(kit: Kit, torch_index: str | None) -> str:
    if kit.needs_torch_index and not torch_index:
        return "give --torch-index URL, the index that carries PyTorch's CPU builds"
    return "check the network and the package index, then run it again: what is there is kept"


def _pip(python: str, argv: list[str], kit: Kit, directory: Path, *, hint: str = "run it again") -> None:
    """Run pip of the environment; its whole output stays in install.log, its error in one line."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *argv]
    log = directory / "install.log"
    try:
        with log.open("ab") as sink:
            sink.write(f"$ pip {' '.join(argv[:2])} …\n".encode())
            sink.flush()
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False
            ).returncode
    except OSError as error:
        raise InfrastructureError(f"pip of {kit.name} cannot be run: {error.strerror}", mend=hint) from None
    if code != 0:
        raise InfrastructureError(f"pip failed for {kit.name}: {_pip_error(log)}", mend=f"{hint} (see {log})")


def _pip_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no output"])[-1][:300]


def _place_stand_ins(kit: Kit, python: str) -> dict[str, str]:
    """Copy the stand-ins into the environment; UsageError rather than hide a real package of the same name."""
    where = site_packages(python)
    if where is None:
        raise InfrastructureError(f"{python} does not tell where its packages are", mend="remove it and install again")
    placed = {}
    for name in kit.stand_ins:
        if (where / name).is_dir():
            raise UsageError(
                f"{kit.name} holds a real {name}, which a stand-in would hide",
                mend="add this environment with `servescope engines add` instead",
            )
        source = stand_in_source(name)
        (where / f"{name}.py").write_bytes(source)
        placed[name] = hashlib.sha256(source).hexdigest()
    return placed


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
