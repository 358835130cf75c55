"""Run directories: written so that a run that dies keeps what it had, read so that a foreign one is refused."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from harness.records.errors import InfrastructureError, UsageError
from harness.records.manifest import Manifest
from harness.records.tables import SCHEMA_VERSION, TABLES

M = TypeVar("M", bound=BaseModel)


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one, never half of it."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error.strerror or error}", mend="free some space or choose another --out"
        ) from error


class CellDir:
    """One engine x workload x load x repeat: the unit of replication."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def file(self, name: str) -> Path:
        return self.path / name

    def write_manifest(self, manifest: Manifest) -> None:
        self.write_model("manifest.json", manifest)

    def read_manifest(self) -> Manifest:
        return self.read_model("manifest.json", Manifest)

    def write_model(self, name: str, model: BaseModel) -> None:
        write_atomic(self.file(name), (model.model_dump_json(indent=2) + "\n").encode())

    def read_model(self, name: str, kind: type[M]) -> M:
        path = self.file(name)
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise UsageError(f"{path} is missing", mend="name a run or cell directory") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        check_schema(document, path)
        try:
            return kind.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UsageError(f"{path}: {where}: {first['msg']}", mend="it was written by another version") from None

    def write_table(self, name: str, table: pa.Table) -> None:
        target = self.file(f"{name}.parquet")
        temporary = target.with_name(f".{target.name}.part")
        try:
            pq.write_table(table.cast(TABLES[name]), temporary, compression="zstd")
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise InfrastructureError(f"cannot write {target}: {error}", mend="free some space") from error

    def has_table(self, name: str) -> bool:
        return self.file(f"{name}.parquet").is_file()

    def read_table(self, name: str) -> pa.Table:
        """The table in its contract schema; an absent one is empty (a run that died may lack it)."""
        path = self.file(f"{name}.parquet")
        if not path.is_file():
            return TABLES[name].empty_table()
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        found = (table.schema.metadata or {}).get(b"servescope", b"?").decode()
        if found != str(SCHEMA_VERSION) or table.schema.names != TABLES[name].names:
            raise UsageError(
                f"{path} has schema {found}, this servescope reads {SCHEMA_VERSION}",
                mend="read it with the version that wrote it",
            )
        return table


class RunDir:
    """`runs/<UTC>-<short id>/`: plan.toml, reports, verdict.json and the cells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path) -> RunDir:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = root / f"{stamp}-{secrets.token_hex(3)}"
        try:
            (path / "cells").mkdir(parents=True)
        except OSError as error:
            raise InfrastructureError(
                f"cannot create {path}: {error.strerror or error}", mend="choose another --out"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Open a run, or the run around a single cell."""
        if not path.is_dir():
            raise UsageError(f"{path} is not a directory", mend="name a run or cell directory")
        if not (path / "cells").is_dir() and not (path / "manifest.json").is_file():
            raise UsageError(
                f"{path} holds no run (no cells/ and no manifest.json)", mend="name a run or cell directory"
            )
        return cls(path)

    def new_cell(self, name: str) -> CellDir:
        path = self.path / "cells" / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(
                f"cannot create {path}: {error.strerror or error}", mend="free some space or choose another --out"
            ) from error
        return CellDir(path)

    def all_cells(self) -> Iterator[CellDir]:
        """Every cell that was begun, whether or not its manifest is there: what is lost has to be said."""
        if (self.path / "manifest.json").is_file():
            yield CellDir(self.path)
            return
        yield from (CellDir(path) for path in sorted((self.path / "cells").iterdir()) if path.is_dir())

    def cells(self) -> Iterator[CellDir]:
        """The cells that can be read."""
        return (cell for cell in self.all_cells() if cell.file("manifest.json").is_file())


def check_schema(document: Any, path: Path) -> None:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema {version!r}, this servescope reads {SCHEMA_VERSION}",
            mend="read it with the version that wrote it",
        )
