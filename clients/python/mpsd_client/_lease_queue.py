"""Hold a lease, and wait for one that mpsd has put into its queue.  Prose: mpsd's docs/leases.md."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mpsd_client import _calls as calls
from mpsd_client._call import Call
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._values import Lease

Path = str | os.PathLike[str] | None
_LOOK_SECONDS = 0.2  # between two looks at a lease that waits for room
LATE_SECONDS = 10.0  # beyond its wait_seconds: mpsd counts those by the machine's clock, which may be set back


def until_granted(mpsd: Client, lease: Lease) -> Lease | None:
    """Return the lease when it has left the queue; None: mpsd has given it up, as its `wait_seconds` are over, or it was
    released here, LATE_SECONDS after that.

    Raises Refused, and whatever the connection raises.
    """
    end = time.monotonic() + lease.wait_seconds + LATE_SECONDS
    while lease.state == "queued":
        if time.monotonic() > end:
            release(mpsd, lease)
            return None
        time.sleep(_LOOK_SECONDS)
        try:
            lease = mpsd.ask(calls.lease_get(lease.id))
        except Refused as refused:
            if refused.code != ErrorCode.NO_SUCH_LEASE:
                raise
            return None
    return lease


@contextmanager
def leased(call: Call[Lease], *, path: Path = None, program: str = "") -> Iterator[Lease]:
    """Hold a lease inside the `with` block, which begins when it is active: `with leased(calls.lease_create(...)) as lease`.

    path, program: as for Client.  Connections exist only before and after the block, since mpsd closes idle ones.

    Raises Refused; TimeoutError if it was still queued after its `wait_seconds`; and whatever the connection raises.
    """
    with Client(path, program=program) as mpsd:
        made = mpsd.ask(call)
        try:
            lease = until_granted(mpsd, made)
        except BaseException:
            _release_anew(made, path, program)
            raise
    if lease is None:
        raise TimeoutError(f"lease {made.id} was given up: no room for it within its wait_seconds")
    try:
        yield lease
    finally:
        _release_anew(lease, path, program)


def release(mpsd: Client, lease: Lease) -> None:
    """Release a lease, unless it has ended by itself.  Raises Refused, and whatever the connection raises."""
    try:
        mpsd.ask(calls.lease_release(lease.id))
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_LEASE:
            raise


def _release_anew(lease: Lease, path: Path, program: str) -> None:
    with Client(path, program=program) as mpsd:
        release(mpsd, lease)
