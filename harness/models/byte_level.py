"""Byte-level BPE tokenizers as tokenizer.json, with the pieces that a conversion through other tools loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.models.directory import write_json

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(
    path: Path,
    *,
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    specials: Sequence[str],
    single_digits: bool,
    names: Mapping[str, str],
    chat_template: str,
    context: int,
) -> None:
    """tokenizer.json and tokenizer_config.json.

    `single_digits` cuts out each digit before words are split, as SmolLM2's pre-tokenizer does; leaving it out gives
    other ids wherever blanks or a newline precede a digit. `names`: bos_token, eos_token, unk_token, pad_token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": chat_template,
        **names,
    }
    write_json(path / "tokenizer_config.json", config)
