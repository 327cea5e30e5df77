"""Parts of GPUs for the tasks and actors of Ray: Ray places them, and mpsd enforces the part.

    import ray
    from mpsd_client.ray import share

    @ray.remote(num_gpus=0.3)
    @share(memory=8 << 30)
    class Model:
        ...

Each worker process gets a lease before CUDA begins in it: 30 % of the SMs of the GPU that Ray chose. The lease ends
with the process, in whatever way. Without a lease, the task or actor fails with ShareError before its code runs.
"""

import ctypes
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from mpsd_client import _calls as calls
from mpsd_client._client import Client
from mpsd_client._enlisting import has_cuda_begun
from mpsd_client._errors import MpsdError, Refused
from mpsd_client._lease_queue import until_granted
from mpsd_client._place import socket_path
from mpsd_client._values import Lease, Selector

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
WAIT_SECONDS = 30.0
ANSWER_SECONDS = 10.0  # for mpsd; a restart takes 1 to 2 s
_NAME_CHARACTERS = 128


class ShareError(RuntimeError):
    """mpsd gives this process no part of a GPU, so the task or actor does not start."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker process has asked for."""

    gpus: tuple[str, ...]
    sm_percent: float
    memory_bytes: int | None  # of each GPU

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f" and {self.memory_bytes >> 20} MiB"
        return f"{self.sm_percent:g} % of the SMs{memory} of GPU {', '.join(self.gpus)}"


_taken: Terms | None = None  # by this process


def share(memory: int | None = None, wait: float = WAIT_SECONDS) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class, below `ray.remote(num_gpus=...)`.

    memory: most bytes of each GPU; None: no limit. wait: seconds that it may wait for room. It is seldom 0: Ray starts the next
    task when the last one has returned, but its process, and so its lease, ends a moment later.
    """

    def decorate(target: Decorated) -> Decorated:
        changed: Any = target
        if inspect.isclass(target):
            changed.__init__ = _after(lambda: take(memory, wait, target.__name__), changed.__init__)
        else:
            changed = _after(lambda: take(memory, wait, target.__name__), target)
        return changed  # type: ignore[no-any-return]

    return decorate


def _after(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a call before it; a generator stays one, which Ray looks at."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first()
        return function(*args, **kwargs)

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        first()
        yield from function(*args, **kwargs)

    return generate if inspect.isgeneratorfunction(function) else call


def take(memory: int | None = None, wait: float = WAIT_SECONDS, name: str = "worker") -> None:
    """Lease, for the rest of this process's life, the part of a GPU that Ray has assigned to it.  Raises ShareError."""
    global _taken
    terms = _terms(memory)
    if _taken == terms:
        return  # a task of a worker that Ray uses again
    if _taken is not None:
        raise ShareError(f"this worker process has a share of {_taken} already, and its limits cannot change: use max_calls=1")
    if has_cuda_begun():
        raise ShareError(
            "CUDA has begun in this worker process before it had its share: pass no GPU memory as an argument, use max_calls=1"
        )
    socket, node = socket_path(None), ray.util.get_node_ip_address()
    try:
        with Client(program="mpsd_client.ray", timeout_seconds=ANSWER_SECONDS) as mpsd:
            lease = _lease(mpsd, terms, wait, f"ray-{ray.get_runtime_context().get_job_id()}-{name}"[:_NAME_CHARACTERS])
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the lease names the GPU, which is number 0 under it
            _begin_cuda()
            if mpsd.ask(calls.lease_get(lease.id)).clients == 0:
                raise ShareError(f"CUDA runs without MPS on {node}: does CUDA_MPS_PIPE_DIRECTORY lead to {socket}?")
    except (MpsdError, OSError) as exc:  # Ray sends only the text
        why = exc.message if isinstance(exc, Refused) else exc
        raise ShareError(f"mpsd at {socket} on {node} does not give {terms}: {why}") from None
    _taken = terms


def _terms(memory: int | None) -> Terms:
    context = ray.get_runtime_context()
    gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
    asked = float(context.get_assigned_resources().get("GPU", 0.0))
    if not gpus or asked <= 0:
        raise ShareError("Ray has assigned no part of a GPU: ask for one, as in @ray.remote(num_gpus=0.3)")
    return Terms(gpus, min(100.0, round(100 * asked / len(gpus), 4)), memory)


def _lease(mpsd: Client, terms: Terms, wait: float, name: str) -> Lease:
    """Return an active lease for this process; it ends with the process."""
    memory = None if terms.memory_bytes is None else dict.fromkeys(terms.gpus, terms.memory_bytes)
    lease = mpsd.ask(
        calls.lease_create(
            name, Selector.of_self(), terms.gpus, sm_percent=terms.sm_percent, memory_bytes=memory, wait_seconds=wait
        )
    )
    granted = until_granted(mpsd, lease)  # a client would wait too, but without limits if mpsd then refuses the lease
    if granted is None:
        raise ShareError(f"no room for {terms} within {wait} s")
    return granted


def _begin_cuda() -> None:
    """Call cuInit, which connects to MPS, so that it cannot happen later without mpsd."""
    if status := ctypes.CDLL("libcuda.so.1").cuInit(0):
        raise ShareError(f"cuInit failed with CUDA error {status}")
