"""PyTorch on the simulator: it computes on the CPU, in an arena's own memory, which the simulator maps into the process.

Not as on a GPU: without a `pool`, who builds does so elsewhere and copies.  As there: a standby that writes to the arena dies.
"""

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from mpsd_client import Arena, Layout, TensorSpec, _torch_load
from mpsd_client._naming import flatten

READ, WRITE = 1, 2  # mprotect's


def begin_cuda() -> None:
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def tensor_of(arena: Arena, name: str) -> Any:
    """On the CPU, at the tensor's address."""
    found = arena[name]
    kind = getattr(torch, found.dtype)
    memory = (ctypes.c_char * found.nbytes).from_address(found.address)
    assert found.nbytes == prod(found.shape) * kind.itemsize
    return torch.frombuffer(memory, dtype=kind).view(found.shape)


def save(arena: Arena, state: dict[str, Any]) -> None:
    """Make copies, since there is no pool here; aliases of one tensor stay one."""
    extra = state.pop("extra")
    tensors = flatten(state, lambda value: isinstance(value, torch.Tensor), _torch_save_of)
    apart = {each.data_ptr(): each for each in tensors.values()}
    places, offset = {}, arena.allocate(sum(map(_room, apart.values()))).offset
    for address, each in apart.items():
        places[address] = offset
        ctypes.memmove(arena.base + offset, each.contiguous().data_ptr(), each.nbytes)
        offset += _room(each)
    arena.commit(Layout({name: _spec(each, places[each.data_ptr()]) for name, each in tensors.items()}, extra))


def _spec(tensor: Any, offset: int) -> TensorSpec:
    return TensorSpec(offset, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def _room(tensor: Any) -> int:
    return int(-(-tensor.nbytes // 256) * 256)


def _torch_save_of(module: Any) -> dict[str, Any]:
    """As mpsd_client.torch.save has it."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def use_cpu(member: Any) -> None:
    """member: a class with `adopt(arena)`, whose arena is read-only until its process is promoted."""
    torch.cuda.init, torch.cuda.synchronize = begin_cuda, lambda *_: None
    torch.set_num_threads(1)  # alike in all members, and fair to others
    _torch_load.tensor_of = tensor_of
    member.adopt = read_only(member.adopt)
    set_writable, yielded = Arena._set_writable, Arena._yielded

    def protected(arena: Arena, is_writable: bool) -> bool:
        protect(arena, READ | WRITE if is_writable else READ)
        return set_writable(arena, is_writable)

    def read_again(arena: Arena) -> None:
        yielded(arena)
        protect(arena, READ)

    Arena._set_writable, Arena._yielded = protected, read_again  # type: ignore[method-assign]


def read_only(adopt: Callable[[Any, Arena], None]) -> Callable[[Any, Arena], None]:
    def adopted(self: Any, arena: Arena) -> None:
        if not arena.is_writable:
            protect(arena, READ)
        adopt(self, arena)

    return adopted


def protect(arena: Arena, access: int) -> None:
    for block in arena.blocks():
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(block.address), ctypes.c_size_t(block.bytes), access) == 0
