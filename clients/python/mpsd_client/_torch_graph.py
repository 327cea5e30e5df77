"""Capture CUDA graphs in a process that may not write to its arena yet, and upload them to the GPU without running them."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from mpsd_client import _cuda
from mpsd_client._capturing import capturing
from mpsd_client._session import CudaError

WARM_UPS = 3  # as in PyTorch's page on CUDA graphs: the first loads kernels, later ones reuse memory


def capture(step: Callable[[], object], warm_up: Callable[[], object] | None = None, *, share: Any = None) -> Any:
    """Return a torch.cuda.CUDAGraph of the work that `step` launches on the current device.  The capture does not run the work,
    so that `step` may write to an arena that is open for reading.  `graph.replay()` runs it; the results are in the tensors
    that `step` writes: existing ones, or new ones to which it keeps references.

    warm_up: the same work on private memory; it does run, before the capture, to load kernels and to let libraries allocate
    their workspaces.  Without it the first capture of an operation may fail.  share: a graph that never runs at the same time
    as this one; both then share temporary memory.  Exceptions of the capture propagate.
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
    """Return the one stream for all captures: cuBLAS keeps a workspace of tens of MiB for each stream that it has seen.  The
    driver creates it, because PyTorch creates 32 streams of each priority with its first one."""
    return torch.cuda.ExternalStream(_cuda.new_stream(device), device=device)


def shrink_stacks(stack_bytes: int = 256) -> int:
    """Shrink the GPU memory that the context of the current device reserves for the stacks of all threads, and return the old
    size per thread in bytes.  The default of 1,024 bytes takes 264 MiB on an H200; 256 bytes take 198 MiB less.

    Call it before warming up: the first launch of a kernel that needs more enlarges the stacks for good, and waits for the GPU
    and the driver.  Only recursion and calls of functions that the compiler does not know depend on this limit; a kernel with
    those may overrun its stack.  Raises CudaError.
    """
    torch.cuda.init()
    return _cuda.limit_stacks(torch.cuda.current_device(), stack_bytes)


def _upload(graph: Any, stream: Any) -> None:
    """Upload the graph, so that its first replay does not have to.  Older versions of PyTorch do not expose the handle."""
    if hasattr(graph, "raw_cuda_graph_exec"):
        with suppress(CudaError):  # only an optimization; the next synchronization reports real errors
            _cuda.upload_graph(graph.raw_cuda_graph_exec(), stream.cuda_stream)
        stream.synchronize()
