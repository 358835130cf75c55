"""Models by name: `smollm2-135m`, `tiny`, a directory, or a hub name. Getting may download; finding never does."""

from __future__ import annotations

import re
from pathlib import Path

from harness.engines.protocol import ModelDir
from harness.engines.store import cache_root
from harness.models.directory import Progress, check_directory, locked, read_config, weights_sha256
from harness.records.errors import UsageError
from harness.records.manifest import ModelInfo

NAMED = ("smollm2-135m", "tiny")


def models_root() -> Path:
    return cache_root() / "models"


def get_model(name: str, *, progress: Progress | None = None) -> ModelDir:
    """The model, made or downloaded if need be. UsageError for what is no model, InfrastructureError for what fails."""
    say = progress or (lambda _: None)
    given = _directory(name)
    if given is not None:
        return given
    target = models_root() / _folder(name)
    if not target.is_dir():  # asked without the lock, so that a cache that cannot be written still serves
        with locked(target):
            if not target.is_dir():
                _make(name, target, say)
    check_directory(target)
    return ModelDir(name, target)


def _make(name: str, target: Path, say: Progress) -> None:
    if name == "tiny":
        from harness.models.tiny import make_tiny

        make_tiny(target)
    elif name == "smollm2-135m":
        from harness.models.smollm2 import make_smollm2

        make_smollm2(target, say)
    else:
        from harness.models.hub import from_hub

        from_hub(name, target, say)


def find_model(name: str) -> ModelDir:
    """A model that is here already. UsageError with the command that gets it."""
    given = _directory(name)
    if given is not None:
        return given
    target = models_root() / _folder(name)
    if not target.is_dir():
        raise UsageError(f"model {name!r} is not here", mend=f"servescope model get {name}")
    check_directory(target)
    return ModelDir(name, target)


def describe_model(model: ModelDir) -> ModelInfo:
    """What a manifest says of a model. Hashing reads all weights: about a second for 270 MB."""
    size = read_config(model.path).get("vocab_size")
    return ModelInfo(
        name=model.name,
        path=str(model.path),
        weights_sha256=weights_sha256(model.path),
        vocab_size=size if isinstance(size, int) else None,
    )


def _directory(name: str) -> ModelDir | None:
    """A path names a directory; a bare word that is also a folder here does not, lest ./tiny hide the model."""
    path = Path(name).expanduser()
    if not name or name in NAMED or not (path.is_dir() or name.startswith((".", "/", "~"))):
        return None
    if not path.is_dir():
        raise UsageError(f"model directory {name} does not exist", mend="name another")
    check_directory(path)
    return ModelDir(path.resolve().name, path.resolve())


def _folder(name: str) -> str:
    if name not in NAMED and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        raise UsageError(
            f"model {name!r} is not known", mend=f"known are {', '.join(NAMED)}; else owner/name, or a path"
        )
    return name.replace("/", "--")
