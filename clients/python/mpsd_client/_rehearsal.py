"""A rehearsal: the step of a service, run before the process serves, so that its first real step finds all things loaded.

Prose: mpsd's docs/python.md, "Rehearsing".
"""

import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mpsd_client._arena import Arena

TIMES = 3  # the first run loads kernels and fills caches, later ones use them

_log = logging.getLogger("mpsd_client")


def rehearse(
    arena: Arena,
    step: Callable[[], object],
    writes: Iterable[str] | None,
    times: int,
    may_go_on: Callable[[], bool],
) -> bool:
    """Run `step` so often on copies of the arena's memory, as long as `may_go_on` says so before each run.  Return whether all
    runs were made; False also, after a warning, if there is no room for the copies."""
    with ExitStack() as stack:
        stack.enter_context(kept_generators())
        try:
            stack.enter_context(arena._rehearsal(writes))
        except MemoryError as exc:
            words = "the step on arena %s was not rehearsed, its first run will be slow: %s; name what it writes: writes=[...]"
            _log.warning(words, arena.name, exc)
            return False
        for _ in range(times):
            if not may_go_on():
                return False
            step()
    return True


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the default random generators of Python, NumPy and PyTorch, as far as they are loaded, when the block ends."""
    python, numpy, torch = random.getstate(), sys.modules.get("numpy"), sys.modules.get("torch")
    numbers = numpy.random.get_state() if numpy is not None else None
    generators = _of_torch(torch) if torch is not None else []
    states = [each.get_state() for each in generators]
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numbers)
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


def _of_torch(torch: Any) -> list[Any]:
    """Return PyTorch's default generators: that of the CPU and, where CUDA has begun, those of the GPUs."""
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
