"""Start-up and end: port first, then model, engine, event loop; one line when ready, one line when not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import disable_created_metrics

from native_core.engine import Engine
from native_core.engine_config import EngineConfig
from native_core.executor import Executor
from native_core.server.app import build_app
from native_core.server.metered import MeteredExecutor
from native_core.server.metrics import Metrics
from native_core.server.options import Options, Settings, resolve
from native_core.server.runner import EngineRunner, Report
from native_core.server.served import Served
from native_core.server.start_errors import InfrastructureError, UsageError
from native_core.server.weights_hash import weights_sha256
from native_core.tokenizer import Tokenizer
from native_core.weights import LlamaConfig

KEEP_ALIVE_S = 120  # beyond the pauses of any client that reuses connections: a reset in a race looks like a fault
SHUTDOWN_S = 2  # for streams under way when a signal comes
SWITCH_S = 5e-4  # a thread that wants the interpreter gets it after this long; the default of 5 ms is a whole step
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p")


class Server(uvicorn.Server):
    """uvicorn, saying when it serves and ending with exit code 0 on a signal."""

    def __init__(self, config: uvicorn.Config, ready_line: str) -> None:
        super().__init__(config)
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._ready_line, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn, without raising the signal again at the end. Signals belong to the main thread alone."""
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """The listening address, taken before minutes of loading. InfrastructureError if it is in use or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise InfrastructureError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", mend="choose another --port, or 0 for any"
        ) from None
    return sock


def read_json_file(path: Path) -> dict[str, Any]:
    """An object from a file of the model directory; empty without the file. UsageError if it is not an object."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a JSON object")
    return document


class Instance:
    """One server in this process: model loaded, engine built, not yet serving."""

    def __init__(self, options: Options, make_executor: Callable[[Path, int], Executor] | None = None) -> None:
        """Loads the model. UsageError or InfrastructureError if that cannot be."""
        model = _model_config(options.model)
        settings = resolve(options, model)
        defaults = read_json_file(options.model / "generation_config.json")
        eos = eos_ids(defaults, read_json_file(options.model / "config.json"))
        engine_config = _engine_config(settings, eos)
        self.options = options
        self.executor = MeteredExecutor(_load(options, make_executor or numpy_executor))
        self.served = Served(
            settings=settings,
            tokenizer=_tokenizer(options.model),
            vocab_size=model.vocab,
            dtype="float32",
            eos_token_ids=eos,
            sampling_defaults={name: defaults[name] for name in SAMPLING_DEFAULTS if defaults.get(name) is not None},
            weights_sha256=weights_sha256(options.model),
        )
        engine = _engine(engine_config, self.executor)
        self.runner = EngineRunner(engine, self.executor, on_report=self._observe, on_failure=self._failed)
        self.metrics = Metrics(self.served, lambda: self.runner.pending)
        self.app = build_app(self.served, self.runner, self.metrics)
        self._server: Server | None = None
        self._steps = 0

    async def serve(self, sock: socket.socket) -> None:
        """Until a signal, `stop`, or the death of the engine."""
        host, port = sock.getsockname()[:2]
        ready = (
            f"native core ready on http://{f'[{host}]' if ':' in host else host}:{port} model {self.served.name} "
            f"profile {self.options.profile} kv_tokens {self.served.settings.kv_tokens} "
            f"block_size {self.options.block_size} threads {self.options.threads} "
            f"fingerprint {self.served.fingerprint}"
        )
        self._server = Server(
            uvicorn.Config(
                self.app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
            ),
            ready,
        )
        self.runner.start(asyncio.get_running_loop())
        try:
            await self._server.serve(sockets=[sock])
        finally:
            self.runner.stop()

    def stop(self) -> None:
        """From any thread."""
        if self._server is not None:
            self._server.should_exit = True

    def _observe(self, report: Report) -> None:
        self.metrics.observe(report)
        if self.options.log_steps and report.step_s is not None and report.stats.last_batch:
            print(step_line(report), flush=True)

    def _failed(self, error: BaseException) -> None:
        print(f"native core: the engine died: {error!r}", file=sys.stderr, flush=True)
        traceback.print_exception(error)
        self.stop()


def run(options: Options) -> int:
    """The whole life of a server process; the exit code."""
    sock = bind(options.host, options.port)
    with contextlib.closing(sock):
        instance = Instance(options)
        # What was loaded stays: the collector need not walk it again, least of all during a step.
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_S)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter, of no use to anyone who keeps the scrapes
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            try:
                runner.run(instance.serve(sock))
            except OSError as error:  # somebody else began to listen since `bind`
                raise InfrastructureError(f"cannot listen on {options.host}:{options.port}: {error}") from None
    return 0 if instance.runner.failure is None else InfrastructureError.exit_code


def step_line(report: Report) -> str:
    """One step as --log-steps prints it: what was computed, who waits, how the pool stands."""
    stats, block = report.stats, report.stats.block_size
    return (
        f"step {stats.steps} prefill {stats.last_prefill_tokens} decode {stats.last_decode_tokens} "
        f"batch {stats.last_batch} context {stats.last_context_tokens} running {stats.running} waiting {stats.waiting} "
        f"used {stats.blocks_used * block} evictable {stats.blocks_evictable * block} "
        f"free {stats.blocks_free * block} ms {1e3 * (report.step_s or 0.0):.2f}"
    )


def eos_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[int]:
    """Ids that end an answer, from generation_config.json, else config.json: one id or a list."""
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    return frozenset() if value is None else frozenset(value if isinstance(value, list) else [value])


def numpy_executor(model: Path, threads: int) -> Executor:
    from native_core.numpy_executor import NumpyExecutor

    return NumpyExecutor(model, threads=threads)


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it exists (not on Windows): its wake-ups are several times cheaper."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _model_config(directory: Path) -> LlamaConfig:
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", mend="--model takes a Hugging Face model directory")
    try:
        return LlamaConfig.read(directory)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{directory / 'config.json'} lacks what a Llama has: {error}") from error
    except ValueError as error:  # the model's own errors: one line with the mend
        raise UsageError(str(error)) from error


def _tokenizer(directory: Path) -> Tokenizer:
    try:
        return Tokenizer(directory)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _load(options: Options, make_executor: Callable[[Path, int], Executor]) -> Executor:
    try:
        return make_executor(options.model, options.threads)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(f"the model in {options.model} cannot be loaded: {error}") from error
    except MemoryError:
        raise InfrastructureError(f"not enough memory for the model in {options.model}") from None


def _engine_config(settings: Settings, eos: frozenset[int]) -> EngineConfig:
    options = settings.options
    try:
        return EngineConfig(
            num_blocks=settings.num_blocks,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_batched_tokens=options.max_batched_tokens,
            max_model_len=settings.max_model_len,
            policy=options.policy,
            prefix_caching=options.prefix_caching,
            long_prefill_threshold=options.long_prefill_threshold,
            profile=options.profile,
            eos_token_ids=eos,
            max_waiting=options.max_waiting,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _engine(config: EngineConfig, executor: Executor) -> Engine:
    try:
        return Engine(config, executor)
    except MemoryError:
        tokens = (config.num_blocks - 1) * config.block_size
        raise InfrastructureError(
            f"not enough memory for a KV pool of {tokens} tokens", mend="lower --kv-tokens"
        ) from None
