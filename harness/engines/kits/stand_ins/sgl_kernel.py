"""Stands in for SGLang's kernel package, which has no build for this device: imported, never to be called.

Any name may be imported from it. Calling one raises, and first records the name in the file that
SERVESCOPE_STAND_IN_CALLS names, so that a run can prove that no result came from here. It registers no operators:
SGLang takes its AMX path only where `torch.ops.sgl_kernel.convert_weight_packed` exists, so it takes PyTorch's.
"""

import os

__version__ = "0+servescope.stand.in"
__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args: object, **_kwargs: object) -> object:
        record = os.environ.get("SERVESCOPE_STAND_IN_CALLS")
        if record:
            with open(record, "a", encoding="utf-8") as stream:
                stream.write(f"{name}\n")
        raise RuntimeError(f"sgl_kernel.{name} was called, but this environment has no kernels for its device")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse
