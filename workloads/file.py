"""workload.jsonl.gz: a header, the segments, then the requests, one JSON object a line.

{"schema": 1, "name": …, "family": …, "seed": …, "tokenizer_sha256": …, "vocab_size": …, "params": {…},
 "load": {"mode": …, "params": {…}}, "generator": …}
{"segment": "group-0.head", "ids": "<base64 of little-endian uint32>"}       or {"segment": …, "seed": …, "n": …}
{"request_id": "full-0000", "session": "group-0", "after": ["plant-0000"], "prompt": ["group-0.first", …], …}
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from workloads.arrivals import CLOSED, check_load
from workloads.model import Load, Request, Workload, WorkloadError
from workloads.order import check_order
from workloads.rng import Stream
from workloads.rows import SCHEMA, HeaderLine, RequestLine, SegmentLine

M = TypeVar("M", bound=BaseModel)


def write_workload(workload: Workload, path: Path) -> str:
    """Write the file in one step and return the SHA-256 of its lines, uncompressed, as 64 hex digits.

    The lines are the same bytes on every machine; the compressed file is too, as long as both have the same zlib,
    which is why the identity is taken before it. Raises WorkloadError when the disk refuses.
    """
    content = "".join(_dump(line) + "\n" for line in _lines(workload)).encode()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as stream:
        stream.write(content)
    temporary = Path(path).with_name(f".{Path(path).name}.part")
    try:
        temporary.write_bytes(packed.getvalue())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WorkloadError(f"cannot write {path}: {error.strerror}; free some space or name another file") from None
    return hashlib.sha256(content).hexdigest()


def read_workload(path: Path) -> Workload:
    """The workload of a file, every line checked. Raises WorkloadError with the line for whatever is wrong."""
    return _Reader(Path(path)).read()


def _dump(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _lines(workload: Workload) -> Iterator[Mapping[str, Any]]:
    yield {
        "schema": SCHEMA,
        "name": workload.name,
        "family": workload.family,
        "seed": workload.seed,
        "tokenizer_sha256": workload.tokenizer_sha256,
        "vocab_size": workload.vocab_size,
        "params": dict(workload.params),
        "load": {
            "mode": workload.load.mode,
            "params": {key: float(value) for key, value in workload.load.params.items()},
        },
        "generator": workload.generator,
    }
    for name, ids in workload.segments.items():
        yield {"segment": name, "ids": base64.b64encode(np.asarray(ids, dtype="<u4").tobytes()).decode()}
    for request in workload.requests:
        yield RequestLine.of(request).model_dump()


class _Reader:
    """One pass over the lines; `at` is the line in hand, for errors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self.segments: dict[str, tuple[int, ...]] = {}
        self.requests: dict[str, Request] = {}
        self.where: dict[str, str] = {}

    def fail(self, what: str) -> WorkloadError:
        return WorkloadError(f"{self.path}:{self.at}: {' '.join(what.split())}")

    def read(self) -> Workload:
        lines = self._text().split("\n")
        if lines == [""]:
            raise WorkloadError(f"{self.path} is empty; make it with `servescope workload make`")
        if lines[-1]:
            self.at = len(lines)
            raise self.fail("the last line does not end; the file was cut off")
        self.at = 1
        header = self._header(self._parse(lines[0]))
        for self.at, text in enumerate(lines[1:-1], start=2):
            document = self._parse(text)
            if "segment" in document:
                self._segment(document, header)
            else:
                self._request(document)
        if not self.requests:
            raise self.fail("the file holds no request")
        check_order(list(self.requests.values()), self.where)
        load = Load(header.load.mode, header.load.params)
        self._check_arrivals(load)
        return Workload(
            name=header.name,
            family=header.family,
            seed=header.seed,
            params=header.params,
            load=load,
            segments=self.segments,
            requests=tuple(self.requests.values()),
            tokenizer_sha256=header.tokenizer_sha256,
            vocab_size=header.vocab_size,
            generator=header.generator,
        )

    def _text(self) -> str:
        try:
            return gzip.decompress(self.path.read_bytes()).decode()
        except FileNotFoundError:
            raise WorkloadError(f"{self.path} does not exist; make one with `servescope workload make`") from None
        except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
            raise WorkloadError(f"{self.path} is no workload file, or was cut off: {error}") from None
        except OSError as error:
            raise WorkloadError(f"{self.path} cannot be read: {error.strerror}") from None

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            document = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"no JSON object: {error}") from None
        if not isinstance(document, dict):
            raise self.fail("no JSON object")
        return document

    def _model(self, kind: type[M], document: dict[str, Any]) -> M:
        try:
            return kind.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = str(first["loc"][0]) if first["loc"] else ""
            if first["type"] == "extra_forbidden":
                raise self.fail(f"unknown key {key!r}") from None
            if first["type"] == "missing":
                raise self.fail(f"{key!r} is missing") from None
            message = first["msg"].removeprefix("Value error, ")
            raise self.fail(f"{key}: {message}" if key else message) from None

    def _header(self, document: dict[str, Any]) -> HeaderLine:
        schema = document.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            raise self.fail(f"the file has workload schema {schema!r}, this servescope reads {SCHEMA}")
        header = self._model(HeaderLine, document)
        try:
            check_load(Load(header.load.mode, header.load.params))
        except WorkloadError as error:
            raise self.fail(str(error)) from None
        if header.seeded_ids and not header.seeded_ids[0] < header.seeded_ids[1] <= (header.vocab_size or 2**31):
            raise self.fail("seeded_ids: [low, high] with low < high <= vocab_size")
        return header

    def _segment(self, document: dict[str, Any], header: HeaderLine) -> None:
        if self.requests:
            raise self.fail("a segment after the first request; segments come first")
        line = self._model(SegmentLine, document)
        if line.segment in self.segments:
            raise self.fail(f"segment {line.segment!r} was given before")
        ids = self._ids(line.ids) if line.ids is not None else self._drawn(line, header)
        highest = max(ids)
        if highest >= (header.vocab_size or 2**31):
            raise self.fail(f"token id {highest} of segment {line.segment!r} is outside the vocabulary")
        self.segments[line.segment] = ids

    def _ids(self, text: str) -> tuple[int, ...]:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.fail(f"ids: {error}") from None
        if not raw or len(raw) % 4:
            raise self.fail(f"ids: {len(raw)} bytes are no list of uint32")
        return tuple(np.frombuffer(raw, dtype="<u4").tolist())

    def _drawn(self, line: SegmentLine, header: HeaderLine) -> tuple[int, ...]:
        """A seeded segment: n ids, uniform on the header's seeded_ids, from the stream of its seed."""
        if header.seeded_ids is None:
            raise self.fail("a segment with a seed needs `seeded_ids` in the header")
        low, high = header.seeded_ids
        assert line.seed is not None  # by SegmentLine's own check
        assert line.n is not None
        return tuple(low + i for i in Stream.of(line.seed, "segment").integers(high - low, line.n))

    def _request(self, document: dict[str, Any]) -> None:
        request = self._model(RequestLine, document).request()
        if request.request_id in self.requests:
            raise self.fail(f"request {request.request_id!r} was given before")
        for part in request.prompt:
            if isinstance(part, str) and part not in self.segments:
                raise self.fail(f"segment {part!r} of the prompt is missing")
        self.requests[request.request_id] = request
        self.where[request.request_id] = f"{self.path}:{self.at}"

    def _check_arrivals(self, load: Load) -> None:
        """Open loads say when each request comes, unless it follows another; closed ones never do."""
        for request in self.requests.values():
            if load.mode in CLOSED and request.arrival_s is not None:
                raise WorkloadError(f"{self.where[request.request_id]}: arrival_s in a {load.mode} load")
            if load.mode not in CLOSED and request.arrival_s is None and not request.after:
                raise WorkloadError(f"{self.where[request.request_id]}: a {load.mode} load needs arrival_s")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is given twice")
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
