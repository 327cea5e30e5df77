"""The leases of parts.  mpsd keeps them: a plugin that starts again asks mpsd for the list."""

import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mpsd_client import Client, Lease, Selector, calls, release, until_granted

from mpsd_kubernetes.shares import Part, part_of

ANSWER_SECONDS = 10.0
_TOKEN_BYTES = 16


class NoLease(Exception):
    """mpsd does not give this part to a new container now."""


@dataclass(frozen=True, slots=True)
class Leases:
    mpsd_socket: str
    processes: int  # of each container
    mib_per_percent: int  # 0: no memory limit
    room_seconds: float  # how long a new container may wait until processes of the last one have ended
    settle_seconds: float  # from Allocate until the kubelet must list the container

    def healthy_gpus(self) -> dict[str, bool]:
        """Return each GPU of mpsd, and whether a container could begin on it now.  Raises NoLease, MpsdError, OSError."""
        with self._connect() as mpsd:
            if not mpsd.hello.is_operator:  # its leases would be for one user's processes
                raise NoLease("this process is no operator for mpsd: run it as root, with hostPID: true")
            is_well = mpsd.ask(calls.health()).ok
            return {device.uuid: is_well for device in mpsd.pages(calls.device_list())}

    def make(self, part: Part) -> str:
        """Make the lease of a container's part, and return its token.  Raises NoLease, MpsdError, OSError.

        The kubelet allocates a device again only after its last container has ended, or while an init container of the same pod
        has yet to run, so its older leases are released.
        """
        token = secrets.token_hex(_TOKEN_BYTES)
        memory = {part.gpu: self.mib_per_percent * len(part.units) << 20} if self.mib_per_percent else None
        with self._connect() as mpsd:
            for lease, other in self._all(mpsd):
                if other.gpu == part.gpu and other.units & part.units:
                    release(mpsd, lease)
            lease = mpsd.ask(
                calls.lease_create(
                    part.name, Selector.of_token(token), [part.gpu], sm_percent=float(len(part.units)), memory_bytes=memory,
                    processes=self.processes, wait_seconds=self.room_seconds,
                )
            )  # fmt: skip
            if until_granted(mpsd, lease) is None:
                raise NoLease(f"no room for {part} within {self.room_seconds:g} s")
        return token

    def check(self, part: Part) -> None:
        """Check before a container starts that mpsd has its lease.  Raises NoLease, MpsdError, OSError."""
        with self._connect() as mpsd:
            if (health := mpsd.ask(calls.health())) and not health.ok:
                raise NoLease(f"mpsd serves no new client: {'; '.join(health.problems)}")
            if not any(other == part and lease.state == "active" for lease, other in self._all(mpsd)):
                raise NoLease(f"mpsd has no lease of {part} (any more): delete the pod, so that it gets a new one")

    def release_others(self, used: Collection[Part]) -> list[Part]:
        """Release leases whose units no container has, and return their parts.  Raises MpsdError, OSError."""
        units = {(part.gpu, unit) for part in used for unit in part.units}
        oldest = time.time() - self.settle_seconds
        released = []
        with self._connect() as mpsd:
            for lease, part in self._all(mpsd):
                if lease.created_at < oldest and not any((part.gpu, unit) in units for unit in part.units):
                    release(mpsd, lease)
                    released.append(part)
        return released

    def _connect(self) -> Client:
        return Client(self.mpsd_socket, program="mpsd-kubernetes", timeout_seconds=ANSWER_SECONDS)

    def _all(self, mpsd: Client) -> Iterator[tuple[Lease, Part]]:
        """Yield the plugin's leases.  Root of a container can name a lease like one, and has its uid, but not its rights."""
        for lease in list(mpsd.pages(calls.lease_list(limit=1000))):
            part = part_of(lease.name, lease.gpus)
            if part is not None and lease.owner_uid == mpsd.hello.uid and lease.for_all_users:
                yield lease, part
