"""Requests as bytes, made before they are due: as many as memory allows before the load, the rest just in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.client.job import ClientJob
from harness.client.target import Target
from harness.engines.protocol import Engine, GenerationRequest
from harness.records.errors import UsageError
from workloads.model import AnswerOf, Request, Workload

BUDGET = 64 * 1024 * 1024  # bytes of requests encoded ahead


@dataclass(frozen=True)
class TextCodec:
    """The model's tokenizer, where an engine takes or gives text instead of ids."""

    decode: Callable[[tuple[int, ...]], str]
    encode: Callable[[str], tuple[int, ...]]

    @classmethod
    def load(cls, directory: str) -> TextCodec:
        """UsageError if the directory holds no tokenizer.json."""
        from tokenizers import Tokenizer  # heavy, and most engines take ids

        path = Path(directory) / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UsageError(f"{path} is no tokenizer: {error}", mend="name the model's directory") from None
        return cls(
            lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids),
        )


class Bodies:
    """Encodes the requests of one workload for one target."""

    def __init__(
        self, workload: Workload, job: ClientJob, target: Target, engine: Engine, codec: TextCodec | None
    ) -> None:
        if job.send_text and codec is None:
            raise UsageError("the engine takes no token ids", mend="name the model's tokenizer in the job")
        self._workload = workload
        self._job = job
        self._target = target
        self._engine = engine
        self._codec = codec
        self._ready: dict[str, bytes] = {}
        self.late = 0  # requests that had to be encoded on the timed path

    def prepare(self, requests: tuple[Request, ...]) -> None:
        """Encode ahead, in order, until the budget is spent."""
        spent = 0
        for request in requests:
            if any(isinstance(part, AnswerOf) for part in request.prompt):
                continue
            encoded = self._encode(request, {})
            spent += len(encoded)
            self._ready[request.request_id] = encoded
            if spent > BUDGET:
                return

    def take(self, request: Request, answers: Mapping[str, tuple[int, ...]]) -> bytes:
        """The bytes to send. KeyError while an answer that the prompt contains is unknown."""
        ready = self._ready.pop(request.request_id, None)
        if ready is not None:
            return ready
        self.late += 1
        return self._encode(request, answers)

    def _encode(self, request: Request, answers: Mapping[str, tuple[int, ...]]) -> bytes:
        ids = self._workload.prompt_ids(request, answers)
        as_text = self._job.send_text and self._codec is not None
        generation = GenerationRequest(
            request_id=request.request_id,
            max_tokens=request.max_tokens,
            prompt_ids=None if as_text else ids,
            prompt_text=self._codec.decode(ids) if as_text and self._codec else None,
            ignore_eos=request.ignore_eos,
            sampling=request.sampling,
            priority=request.priority,
            adapter=request.adapter,
            salt=self._job.salt,
            want_token_ids=self._job.want_token_ids,
            want_continuous_usage=self._job.want_continuous_usage,
        )
        encoded = self._engine.encode(generation, self._job.model)
        return self._target.post(encoded.path, encoded.headers, encoded.body)
