"""CuPy's part that clients/python/examples/with_cupy.py needs, on the simulator: NumPy computes on the CPU, in the arena's own
memory, which it finds by the CUDA array interface.  Not tested by it: CuPy's reader of DLPack, and its kernels."""

from types import SimpleNamespace
from typing import Any

import numpy


def from_dlpack(tensor: Any) -> Any:
    """Return an array in the memory of the tensor."""
    facts = tensor.__cuda_array_interface__
    return numpy.asarray(
        SimpleNamespace(__array_interface__={name: facts[name] for name in facts if name != "stream"}, owner=tensor)
    )


class _Device:
    def synchronize(self) -> None:
        """Do nothing: NumPy has computed when it returns."""


cuda = SimpleNamespace(Device=_Device)
