"""Byte-level BPE written from its definition, with nothing of the library that the tokenizer under test wraps."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

# Unicode's White_Space property, which \s means in the pattern; str.isspace() knows four more
BLANK = {*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def byte_letters() -> dict[int, str]:
    """Printable bytes stand for themselves, the others for the characters from U+0100 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = itertools.count(256)
    return {byte: chr(byte if byte in shown else next(spare)) for byte in range(256)}


def kind(character: str) -> str:
    if ord(character) in BLANK:
        return "blank"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def words(text: str) -> list[str]:
    """GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"""
    found, at = [], 0
    while at < len(text):
        ending = next((e for e in ENDINGS if text.startswith(e, at)), None)
        body = at + (text[at] == " " and at + 1 < len(text) and kind(text[at + 1]) != "blank")
        stop = body + 1
        while stop < len(text) and kind(text[stop]) == kind(text[body]):
            stop += 1
        if ending:
            stop = at + len(ending)
        elif kind(text[body]) == "blank" and stop < len(text) and stop - at > 1:
            stop -= 1  # the last blank before a word belongs to the word
        found.append(text[at:stop])
        at = stop
    return found


class Reference:
    """Encodes with the vocabulary and merges of a tokenizer.json; each number character is cut out first."""

    def __init__(self, directory: Path) -> None:
        document = json.loads((directory / "tokenizer.json").read_text("utf-8"))
        self.vocab: dict[str, int] = document["model"]["vocab"]
        merges = document["model"]["merges"]
        pairs = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
        self._rank = {pair: rank for rank, pair in enumerate(pairs)}
        self.specials = [row["content"] for row in document["added_tokens"]]
        self._letters = byte_letters()

    def encode(self, text: str) -> list[int]:
        ids = []
        for part in self._parts(text):
            if part in self.specials:
                ids.append(self.vocab[part])
                continue
            for _, group in itertools.groupby(enumerate(part), lambda item: kind(item[1]) == "number" and item[0] + 1):
                for word in words("".join(character for _, character in group)):
                    ids += [self.vocab[piece] for piece in self._merged(word)]
        return ids

    def _parts(self, text: str) -> list[str]:
        """The text cut at special tokens."""
        parts = [text]
        for special in self.specials:
            cut = []
            for part in parts:
                if part in self.specials:
                    cut.append(part)
                    continue
                pieces = part.split(special)
                cut += [piece for pair in zip(pieces, [special] * len(pieces), strict=True) for piece in pair][:-1]
            parts = cut
        return [part for part in parts if part]

    def _merged(self, word: str) -> list[str]:
        """The pair of lowest rank is joined, the leftmost of equals, until none is left."""
        pieces = [self._letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            ranks = [self._rank.get((a, b), len(self._rank)) for a, b in itertools.pairwise(pieces)]
            least = min(ranks)
            if least == len(self._rank):
                break
            at = ranks.index(least)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces
