"""CUDA graphs of a process that may not write yet: captured, which runs nothing, and brought to the GPU."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from mpsd_client import _cuda
from mpsd_client._service import capturing
from mpsd_client._session import CudaError

WARM_UPS = 3  # as PyTorch's page on CUDA graphs does: the first loads kernels, later ones find memory that is there


def capture(step: Callable[[], object], warm_up: Callable[[], object] | None = None, *, share: Any = None) -> Any:
    """A torch.cuda.CUDAGraph of what `step` launches on the current device.  It does not run here: so `step` may write to an
    arena that is open for reading.  `graph.replay()` runs it; results are where `step` has put them: in a tensor that was there
    before, or in one that it has kept.

    warm_up: the same work on memory of this process's own, which does run, before: it loads kernels and lets libraries take
    their workspaces.  Without it the first capture of an operation may fail.  share: a graph that never runs at the same time
    as this one: they have their temporary memory in common.  What a capture raises comes through.
    """
    stream = _stream(torch.cuda.current_device())
    if warm_up is not None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                warm_up()
        stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with capturing():
        with torch.cuda.graph(graph, pool=None if share is None else share.pool(), stream=stream):
            step()
        _upload(graph, stream)
    return graph


@functools.cache
def _stream(device: int) -> Any:
    """One for all captures: cuBLAS keeps a workspace, tens of MiB, for each stream that it has seen.  The driver's own: with
    its first one PyTorch makes 32 of each priority."""
    return torch.cuda.ExternalStream(_cuda.new_stream(device), device=device)


def shrink_stacks(stack_bytes: int = 256) -> int:
    """Gives back what the context of the current device keeps for the stacks of all threads that can run: 1,024 bytes each
    where nobody has said otherwise, 264 MiB on an H200; with 256 it is 198 MiB less.  The bytes that it was.

    Before anything is warmed up: a kernel that needs more is given more when it is launched, for good, which waits for the GPU
    and the driver.  Only recursion, and functions that the compiler does not know, rely on what is said here; a kernel with
    those may overrun it.  Raises CudaError.
    """
    torch.cuda.init()
    return _cuda.limit_stacks(torch.cuda.current_device(), stack_bytes)


def _upload(graph: Any, stream: Any) -> None:
    """What the first replay would otherwise do first.  PyTorch tells the handle from some version on."""
    if hasattr(graph, "raw_cuda_graph_exec"):
        with suppress(CudaError):  # a head start; what is really wrong is said by what waits next
            _cuda.upload_graph(graph.raw_cuda_graph_exec(), stream.cuda_stream)
        stream.synchronize()
