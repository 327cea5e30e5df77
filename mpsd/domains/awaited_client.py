"""Run a command for which a server needs one of its clients to run, and let that client do so.

If the client is stopped before the answer, the server waits for it, and its other clients stand still.  mpsd looks before the
command, and until the answer.  Prose: docs/ending.md.
"""

import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import UNREAD
from mpsd.domains.vendor_control import VendorSilent
from mpsd.domains.vital_signs import how_stopped
from mpsd.errors import MpsdError
from mpsd.host import processes
from mpsd.host.ownership import is_anothers
from mpsd.host.process_reader import UNREAD_SECONDS
from mpsd.model.process import ProcessId

_LOOK_SECONDS = 0.05  # the vendor's answer takes 0.01 s
_PATIENCE_SECONDS = 1.0  # since it was first stopped, until it is killed if it is stopped still or again
_AFTER_SECONDS = 3.5  # after mpsd gave the command up: the server may still work on it; two looks take 1.5 s each
_SLACK_SECONDS = 2.0  # for the look after UNREAD_SECONDS
UNKNOWN = "may be stopped: mpsd cannot read its state"  # one process can cause that for all others, for seconds
log = structlog.get_logger()


async def how_stopped_now(domain: Domain, client_pid: int, state: str) -> str:
    """Return how the client in this state is kept from running; "" if it is not.  UNKNOWN, UNREAD: it may run, or not."""
    return how_stopped(state) or await domain.control.how_frozen(client_pid) or (UNKNOWN if state == "?" else "")


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
    if not asked.is_set():  # until the command's turn; if it is not sent, the nursery ends this
        await asked.wait()
    stopped_at: float | None = None  # first
    unknown_at = math.inf  # after the first of the looks in a row that do not know its state: one read may take seconds
    longer_until: float | None = None
    before, logged = "", None
    with watching:
        while True:
            await trio.sleep(_LOOK_SECONDS)
            looked_at = trio.current_time()  # UNREAD takes as long as mpsd's patience: its server has waited for that long
            state = processes.state(client.pid)
            unknown_at = min(unknown_at, trio.current_time()) if state == "?" else math.inf
            how = await how_stopped_now(domain, client.pid, state)
            if how == UNKNOWN:
                longer_until = longer_until or unknown_at + UNREAD_SECONDS + _SLACK_SECONDS  # set once: a user can cause many
                watching.deadline = max(watching.deadline, longer_until)
                is_late = looked_at - unknown_at >= UNREAD_SECONDS
            elif how:
                stopped_at = looked_at if stopped_at is None else stopped_at
                is_sure = how != UNREAD or before == UNREAD  # on a busy machine one look can be late
                is_late = is_sure and trio.current_time() - stopped_at >= _PATIENCE_SECONDS
            sent = None
            if how and _signal(domain, client, number := signal.SIGKILL if is_late else signal.SIGCONT):
                sent = number, how
                if sent != logged:  # mpsd looks 20 times in a second
                    log.error("client.signalled", pid=client.pid, domain=domain.name, signal=number.name, why=f"it {how}")
            before, logged = how, sent


def may_signal(domain: Domain, client: ProcessId) -> bool:
    """Return whether mpsd admitted the process as a client, and its user may signal it: a vendor's list proves nothing."""
    return domain.admitted.get(client.pid) == client and not is_anothers(client, domain.uids.get(client))


def _signal(domain: Domain, client: ProcessId, number: signal.Signals) -> bool:
    """Return whether the signal was sent."""
    with suppress(OSError):
        return may_signal(domain, client) and processes.kill(client, number)
    return False
