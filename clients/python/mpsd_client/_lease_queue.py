"""Wait for a lease that mpsd has put into its queue.  Prose: mpsd's docs/leases.md."""

import time

from mpsd_client import _calls as calls
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._values import Lease

_LOOK_SECONDS = 0.2  # between two looks at a lease that waits for room


def until_granted(mpsd: Client, lease: Lease) -> Lease | None:
    """Return the lease when it has left the queue; None: mpsd has given it up, as its `wait_seconds` are over.

    Raises Refused, and whatever the connection raises.
    """
    while lease.state == "queued":
        time.sleep(_LOOK_SECONDS)
        try:
            lease = mpsd.ask(calls.lease_get(lease.id))
        except Refused as refused:
            if refused.code != ErrorCode.NO_SUCH_LEASE:
                raise
            return None
    return lease
