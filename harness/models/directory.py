"""A Hugging Face model directory, from the outside: what it is, and writing one so that it is whole or not there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.errors import InfrastructureError, UsageError

Progress = Callable[[str], None]


def check_directory(path: Path) -> None:
    """UsageError unless the directory holds a model that the engines here can load."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise UsageError(f"{path} is no model directory: {', '.join(missing)} missing", mend="name another, or get one")
    read_config(path)


def read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path / 'config.json'} cannot be read: {error}", mend="get the model again") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path / 'config.json'} is no object", mend="get the model again")
    return config


def weights_sha256(path: Path) -> str:
    """SHA-256 over the weight files in order of name: the same weights, the same hash, on every machine."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def write_weights(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """model.safetensors in bfloat16, half of float32 and what the checkpoint was published in. OSError if it fails."""
    import ml_dtypes
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    halved = {name: np.ascontiguousarray(array.astype(ml_dtypes.bfloat16)) for name, array in tensors.items()}
    file = path / "model.safetensors"
    try:
        save_file(halved, file, metadata={"format": "pt"})
    except SafetensorError as error:  # what the library makes of a full disk
        raise OSError(str(error)) from None
    file.chmod(0o644)  # the writer makes it private; other users of a shared cache may load it


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """One writer of `target` at a time, also across processes."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.lock").open("w")
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {target.parent}: {error.strerror}",
            mend="set SERVESCOPE_CACHE to a place that can be written",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def made_whole(target: Path, need_bytes: int) -> Iterator[Path]:
    """A directory to fill beside `target`, renamed to it at the end; gone without a trace if anything goes wrong."""
    free = shutil.disk_usage(target.parent).free
    if free < need_bytes:
        raise InfrastructureError(
            f"{target.parent} has {free // 1_000_000} MB free, {target.name} needs {need_bytes // 1_000_000}",
            mend="free some space or set SERVESCOPE_CACHE",
        )
    draft = target.with_name(f".{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    except OSError as error:
        raise InfrastructureError(f"cannot write {target}: {error.strerror or error}", mend="free some space") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
