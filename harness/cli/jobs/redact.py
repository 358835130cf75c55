"""What a cell keeps of its prompts when they must not be kept: their structure, under a mapping nobody has."""

from __future__ import annotations

import secrets
from dataclasses import replace

from workloads.model import Workload
from workloads.vocabulary import Vocabulary


def redacted(workload: Workload, vocabulary: Vocabulary) -> Workload:
    """The workload with every token id replaced through a random one-to-one mapping that is then forgotten.

    Equal prefixes stay equal and different ones different, so the oracle's answer is the same; the text is gone.
    """
    size = workload.vocab_size or vocabulary.size
    ids = list(range(size))
    secrets.SystemRandom().shuffle(ids)
    segments = {name: tuple(ids[token] for token in tokens) for name, tokens in workload.segments.items()}
    return replace(workload, segments=segments)
