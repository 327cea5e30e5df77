"""The sentinels of one domain."""

import os
import socket

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.sentinel.protection import Protection
from mpsd.sentinel.watcher import Watcher


async def test_a_sentinel_that_is_not_ready_does_not_delay_the_naming_of_other_clients() -> None:
    """Until it is ready it may not read for seconds, and one task names the clients of all domains."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        process = processes.process_id(os.getpid())
        assert process
        domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY, members={process: 0.0})
        watcher = Watcher("GPU-0", here, lambda watcher, report: None, lambda watcher: None)
        protection = Protection(domain, None, None, print, print, {"GPU-0": watcher})  # type: ignore[arg-type]
        assert not await protection.name_clients()
        assert not watcher.added
        watcher.is_armed = True
        assert await protection.name_clients()
        _, descriptors, _, _ = socket.recv_fds(there, 64, 4, socket.MSG_DONTWAIT)
        os.close(descriptors[0])
