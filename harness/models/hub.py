"""Models from the Hugging Face hub, by owner/name."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from harness.models.directory import Progress, check_directory, made_whole
from harness.records.errors import UsageError

FILES = ("*.json", "*.safetensors", "*.jinja")  # no code, and no weights in formats that run code
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def from_hub(name: str, target: Path, progress: Progress) -> None:
    """Download into `target`. UsageError if it cannot be got, InfrastructureError if the disk is full."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(
            f"model {name} is not here and huggingface_hub is not installed", mend="name a directory"
        ) from None
    progress(f"getting {name} from the hub")
    with made_whole(target, 0) as draft:
        try:
            snapshot_download(name, local_dir=draft, allow_patterns=list(FILES))
        except Exception as error:  # the hub's client raises many kinds, its transport more; all mean: not here
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"model {name} cannot be got from the hub: {why}",
                mend="check the name, the network and HF_TOKEN, or name a directory",
            ) from None
        shutil.rmtree(draft / ".cache", ignore_errors=True)  # the client's own notes on the download
        check_directory(draft)
