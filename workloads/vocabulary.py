"""Which token ids may be sent: ordinary text tokens of a model, never the special ones."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.model import WorkloadError

MIN_WORDS = 1024  # fewer whole-word tokens than this, and every ordinary token is used instead
_WORD = re.compile(r"[Ġ▁][A-Za-z]+")


@dataclass(frozen=True)
class Vocabulary:
    """Token ids fit for prompts, ascending, and the size of the embedding table they index."""

    size: int
    ids: tuple[int, ...]
    tokenizer_sha256: str | None = None

    def __post_init__(self) -> None:
        if len(self.ids) < 2:
            raise WorkloadError(f"the vocabulary offers {len(self.ids)} ordinary tokens; at least 2 are needed")
        if self.ids[0] < 0 or self.ids[-1] >= self.size:
            raise WorkloadError(f"token ids {self.ids[0]} … {self.ids[-1]} do not fit a vocabulary of {self.size}")

    @classmethod
    def of(cls, model_dir: Path) -> Vocabulary:
        """Read tokenizer.json and config.json of a Hugging Face directory.

        Added tokens are left out, special or not. Where the tokenizer has enough of them, only whole words with a
        leading space are used: a sequence of such words is cut into the same tokens again by the tokenizer, so that a
        prompt means the same ids to a server that takes only text, and every answer to it is valid UTF-8.
        Raises WorkloadError when a file is missing or is no tokenizer.
        """
        tokenizer, raw = _read(Path(model_dir) / "tokenizer.json")
        config, _ = _read(Path(model_dir) / "config.json")
        vocab = _vocab(tokenizer, Path(model_dir) / "tokenizer.json")
        added = {entry.get("id") for entry in tokenizer.get("added_tokens") or []}
        size = config.get("vocab_size")
        if not isinstance(size, int) or size < 1:
            size = (config.get("text_config") or {}).get("vocab_size") or max(vocab.values(), default=-1) + 1
        ordinary = {token: i for token, i in vocab.items() if i not in added and 0 <= i < size}
        words = sorted(i for token, i in ordinary.items() if _WORD.fullmatch(token))
        ids = words if len(words) >= MIN_WORDS else sorted(ordinary.values())
        return cls(size=size, ids=tuple(ids), tokenizer_sha256=hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        raw = path.read_bytes()
        document = json.loads(raw)
    except OSError as error:
        raise WorkloadError(
            f"{path} cannot be read ({error.strerror}); name a model directory with tokenizer.json and config.json"
        ) from None
    except ValueError as error:
        raise WorkloadError(f"{path} is no JSON ({error}); get the model again") from None
    if not isinstance(document, dict):
        raise WorkloadError(f"{path} holds no JSON object; get the model again")
    return document, raw


def _vocab(tokenizer: dict[str, Any], path: Path) -> dict[str, int]:
    """Token -> id of a BPE, WordPiece or WordLevel (an object) or Unigram (a list of pairs) tokenizer."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return {str(token): i for token, i in vocab.items() if isinstance(i, int)}
    if isinstance(vocab, list):
        return {str(pair[0]): i for i, pair in enumerate(vocab) if isinstance(pair, list) and pair}
    raise WorkloadError(f"{path} has no model.vocab; a tokenizer in the format of the tokenizers library is needed")
