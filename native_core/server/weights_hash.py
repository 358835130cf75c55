"""Which weights these are, whatever their directory is called."""

from __future__ import annotations

import hashlib
from pathlib import Path


def weights_sha256(model: Path) -> str:
    """SHA-256 of the safetensors files, one after the other in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
