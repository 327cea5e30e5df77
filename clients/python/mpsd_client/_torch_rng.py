"""PyTorch's random generators as bytes, which a forward state carries from one process to the next."""

import ctypes
from typing import Any

import torch

RNG_BYTES = 16  # state of a GPU's generator: its seed and offset.  A CPU's has 5056 bytes


def rng_state(of: Any = "cuda") -> bytes:
    """Return the state of a generator: a GPU's default one, that of "cpu", or a torch.Generator.  It has RNG_BYTES bytes, or
    5056 for a CPU's.

    The state is in host memory: the call does not wait for the GPU, and counts launched work as done.  Do not call it during a
    graph capture.
    """
    state = _generator(of).get_state().contiguous()
    return ctypes.string_at(state.data_ptr(), state.numel())


def set_rng_state(state: bytes, of: Any = "cuda") -> None:
    """Set the state of a generator, which then continues the saved sequence.  Graphs captured with the generator do so from
    their next replay on.  Raises ValueError if the state does not fit the kind of generator."""
    generator = _generator(of)
    if len(state) != (wanted := generator.get_state().numel()):
        raise ValueError(f"the state of a generator of {generator.device} has {wanted} bytes, not {len(state)}")
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _generator(of: Any) -> Any:
    if isinstance(of, torch.Generator):
        return of
    device = torch.device("cuda", of) if isinstance(of, int) else torch.device(of)
    if device.type == "cpu":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
