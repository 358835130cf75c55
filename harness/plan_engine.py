"""One [[engine]] of a plan: how it is reached and what it is asked to be."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.engines.protocol import EngineConfig
from harness.records.manifest import EvidenceProfile

AUTO: Final = "auto"  # the kind of an engine behind a URL, found out when it answers

Kind = Literal["native", "vllm", "sglang", "openai", "auto"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]  # it becomes a part of a directory's name
Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Base of every part of a plan. Strict, so that a number in quotes or a misspelt key is no silent default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class Options(Part):
    """The canonical options, which each adapter translates. None leaves the engine its own default."""

    block_size: Positive | None = None
    kv_tokens: Positive | None = None
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None
    max_batched_tokens: Positive | None = None
    prefix_caching: bool | None = None
    dtype: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    device: str | None = None  # cpu | cuda …; an environment whose name ends in -cpu is one for a CPU
    profile: str | None = None  # native only: whose scheduling rules to follow

    @model_validator(mode="after")
    def _whole_blocks(self) -> Options:
        if self.block_size and self.kv_tokens and self.kv_tokens % self.block_size:
            raise ValueError(f"kv_tokens = {self.kv_tokens} is no multiple of block_size = {self.block_size}")
        return self


class EnginePart(Part):
    """One [[engine]]: started from an installed environment (`env`), the native core, or a server behind `url`."""

    name: Name
    kind: Kind
    env: str | None = None
    url: str | None = None
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    options: Options = Options()
    args: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _kind_of_url(cls, given: Any) -> Any:
        return {"kind": AUTO, **given} if isinstance(given, dict) and given.get("url") else given

    @field_validator("args", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("args")
    @classmethod
    def _no_key(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        if any(arg.split("=")[0] in {"--api-key", "--admin-api-key", "--api_key"} for arg in args):
            raise ValueError("a key in args would show in the process list; use api_key_env with the engine's url")
        return args

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        return None if url is None else base_url(url)

    @model_validator(mode="after")
    def _one_way_to_it(self) -> EnginePart:
        if self.url:
            if self.env or self.args or self.options != Options():
                raise ValueError("an engine behind a url runs already: env, options and args have no effect on it")
        elif self.kind in {"openai", AUTO}:
            raise ValueError(f"an engine of kind {self.kind} is not started here; give its url")
        elif self.kind == "native" and self.env:
            raise ValueError("the native core is part of servescope; leave env out")
        elif self.kind != "native" and not self.env:
            raise ValueError("give env (a name from `servescope engines list`) or the url of a running server")
        elif self.api_key_env:
            raise ValueError("api_key_env is for an engine behind a url")
        if self.options.profile and self.kind != "native":
            raise ValueError("profile is an option of the native core only")
        return self

    def config(self, evidence: EvidenceProfile, *, python: str | None = None, kind: str | None = None) -> EngineConfig:
        """What an adapter needs. `python`: the interpreter that `env` stands for; `kind`: what `auto` turned out as."""
        return EngineConfig(
            name=self.name,
            kind=kind or self.kind,
            env=self.env,
            python=python,
            url=self.url,
            api_key_env=self.api_key_env,
            options=self.options.model_dump(exclude_none=True),
            args=self.args,
            evidence=evidence,
        )


def base_url(url: str) -> str:
    """An engine's URL without trailing slash and /v1, which adapters add. ValueError for what is no plain URL."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"no URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a URL looks like http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise ValueError("a URL with a password would end up in the run; name a variable with api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("a URL without ? and # is needed: scheme, host, port and path")
    path = re.sub(r"/+(v1/*)?$", "", parts.path)
    return f"{parts.scheme}://{parts.netloc}{path}"
