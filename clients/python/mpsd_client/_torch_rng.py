"""PyTorch's random generators as bytes, which a forward state carries from one process to the next."""

import ctypes
from typing import Any

import torch

RNG_BYTES = 16  # of a GPU's generator: its seed and how far it is.  A CPU's has 5056


def rng_state(of: Any = "cuda") -> bytes:
    """Where a generator is: a GPU's default one, that of "cpu", or a torch.Generator.  RNG_BYTES, but 5056 of a CPU's.

    It is host memory: nothing is waited for, and work that was launched before counts as done.  Not within a graph's capture.
    """
    state = _generator(of).get_state().contiguous()
    return ctypes.string_at(state.data_ptr(), state.numel())


def set_rng_state(state: bytes, of: Any = "cuda") -> None:
    """It goes on from there: what it gives next is what it would have given next.  So do graphs that were captured with it,
    from their next replay on.  Raises ValueError: the state is not one of such a generator."""
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
