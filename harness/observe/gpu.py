"""GPUs by NVML. Needs nvidia-ml-py; a host without it or without a GPU says so in words."""

from __future__ import annotations

from typing import Any

NONE = "no GPU on this host"


def gpu_facts() -> dict[str, Any]:
    """Driver and, per GPU, name and memory in bytes; {"present": False, "why": …} where there is none."""
    try:
        import pynvml
    except ImportError:
        return {"present": False, "why": f"{NONE}, or nvidia-ml-py is not installed (pip install servescope[gpu])"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"present": False, "why": f"{NONE} ({error})"}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "present": bool(handles),
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "devices": [
                {
                    "name": _text(pynvml.nvmlDeviceGetName(handle)),
                    "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                }
                for handle in handles
            ],
        }
    except pynvml.NVMLError as error:
        return {"present": False, "why": f"NVML fails: {error}"}
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older nvidia-ml-py returns bytes."""
    return value.decode() if isinstance(value, bytes) else value
