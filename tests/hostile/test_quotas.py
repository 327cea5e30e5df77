"""A writer that states less memory than it gives."""

import fcntl
import os

import pytest
from mpsd_client import Refused, calls

from tests.integration.machine import UIDS, Machine

GRANULE = 2 << 20


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE], ids=["large", "that may grow"])
def test_memory_of_the_host_is_not_put_as_memory_of_the_gpu(shared: Machine, seals: int) -> None:
    """A gigabyte that no quota counts, which mpsd's keeper would hold after the writer's end."""
    descriptor = os.memfd_create("large", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 20 if seals else 1 << 30)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with shared.mpsd(UIDS[0]) as mpsd:
        made = mpsd.ask(calls.arena_create("small", "0", GRANULE))
        opened = mpsd.ask(calls.arena_open("small", "write"))
        with pytest.raises(Refused, match="not simulated GPU memory"):
            mpsd.ask(calls.arena_put(made.id, opened.generation, [(0, GRANULE)], [descriptor]))
        mpsd.ask(calls.arena_close(made.id))
        mpsd.ask(calls.arena_remove("small"))
    os.close(descriptor)
