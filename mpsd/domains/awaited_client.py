"""Run a command for which a server needs one of its clients to run, and let that client do so.

If the client is stopped meanwhile, the server waits for it, and all its other clients stand still.  mpsd looks before the
command and while it has no answer.  Prose: docs/ending.md.
"""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import FROZEN
from mpsd.domains.vendor_control import VendorSilent
from mpsd.domains.vital_signs import how_stopped
from mpsd.errors import MpsdError, VendorFailed
from mpsd.host import cgroups, processes
from mpsd.host.ownership import is_anothers
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

_READ_SECONDS = 2.0  # users can delay reads of cgroups
_LOOK_SECONDS = 0.05  # the vendor's answer takes 0.01 s
_PATIENCE_SECONDS = 1.0  # since it was first stopped, until it is killed if it is stopped still or again
_AFTER_SECONDS = 2.0  # after mpsd gave the command up: the server may still work on it
log = structlog.get_logger()


async def how_stopped_now(domain: Domain, client_pid: int) -> str:
    """Return how the client is kept from running; "" if it is not.  Raises VendorFailed if that is not known in time."""
    control = domain.control
    with trio.move_on_after(_READ_SECONDS):
        return await run_in_thread(_how_stopped, client_pid, control.unified, abandon_on_cancel=True, limiter=control.looks)
    raise VendorFailed(f"whether client {client_pid} is frozen with its cgroup was not known within {_READ_SECONDS:g} s")


def _how_stopped(pid: int, unified: Path | None) -> str:
    return how_stopped(pid) or (FROZEN if cgroups.is_frozen(pid, unified) else "")


async def command_about(domain: Domain, client: ProcessId | None, line: str, check: Callable[[], Awaitable[None]]) -> str:
    """Return the vendor daemon's answer.  Raises VendorFailed, and what `check` raises, which is called before it is asked.

    A client of the domain that is stopped before the answer is continued, or else killed: its user may have timed the stop.
    client: None if mpsd cannot see it.
    """
    asked, watching = trio.Event(), trio.CancelScope(shield=True)  # shielded: the server waits even if mpsd's caller does not

    async def check_and_tell() -> None:
        await check()
        asked.set()

    answer = ""
    failure: MpsdError | None = None
    async with trio.open_nursery() as nursery:
        if client is not None:
            nursery.start_soon(_keep_running, domain, client, asked, watching)
        try:
            answer = await domain.control.command(line, check=check_and_tell)
            watching.cancel()
        except VendorSilent as exc:
            failure = exc
        except MpsdError as exc:
            failure = exc
            watching.cancel()
        finally:
            watching.deadline = trio.current_time() + _AFTER_SECONDS
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer


async def _keep_running(domain: Domain, client: ProcessId, asked: trio.Event, watching: trio.CancelScope) -> None:
    await asked.wait()  # until the command's turn; if it is not sent, the nursery ends this
    stopped_at: float | None = None  # first
    with watching:
        while True:
            await trio.sleep(_LOOK_SECONDS)
            with suppress(VendorFailed):
                if how := await how_stopped_now(domain, client.pid):
                    now = trio.current_time()
                    stopped_at = now if stopped_at is None else stopped_at
                    _signal(domain, client, signal.SIGCONT if now - stopped_at < _PATIENCE_SECONDS else signal.SIGKILL, how)


def _signal(domain: Domain, client: ProcessId, number: signal.Signals, how: str) -> None:
    """Signal the process if mpsd admitted it as a client, and its user may do so: the vendor's list alone proves nothing."""
    if domain.admitted.get(client.pid) != client:
        return
    with suppress(OSError):
        if not is_anothers(client, domain.uids.get(client)) and processes.kill(client, number):
            log.error("client.signalled", pid=client.pid, domain=domain.name, signal=number.name, why=f"it {how}")
