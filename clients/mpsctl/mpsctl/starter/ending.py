"""End a child: first its work on the GPU, through mpsd; then the process, by SIGTERM and SIGKILL.

A signal alone may kill the clients that share the GPU with the child: docs/ending.md.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mpsd_client import Client, ErrorCode, MpsdError, Refused, calls

from mpsctl.session import NoMpsd
from mpsctl.starter.children import Child
from mpsctl.starter.groups import Process, eligible, groups, is_in

_LEFT = "left: "
_MARGIN_SECONDS = 60.0  # extra time for mpsd if vendor daemons do not answer


@dataclass(frozen=True, slots=True)
class Manner:
    """Limits for ending a child.  drain_seconds: for the work queued on the GPU.  grace_seconds: from SIGTERM to SIGKILL."""

    drain_seconds: float = 1.0
    grace_seconds: float = 5.0


def end(child: Child, connect: Callable[[], Client], manner: Manner) -> str:
    """End a child and wait some seconds for its end.  Return what went wrong; empty if nothing did."""
    trouble = _end_through_mpsd(child, connect, manner)
    if child.has_ended.wait(0.1):
        return trouble
    if trouble.startswith(_LEFT):
        return trouble  # a signal would harm clients that share the GPU
    for each in (signal.SIGTERM, signal.SIGKILL):
        send(child, each)
        if child.has_ended.wait(manner.grace_seconds):
            return trouble
    return f"{trouble}; pid {child.pid} does not end".removeprefix("; ")


def send(child: Child, number: signal.Signals) -> bool:
    """Send a signal to the child's process group, unless the child has ended.  Return False if that is not permitted: its
    command runs as another user, as under sudo."""
    if not child.has_ended.is_set():
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
    return True


def _end_through_mpsd(child: Child, connect: Callable[[], Client], manner: Manner) -> str:
    try:
        with connect() as mpsd:
            mpsd.timeout_seconds = 3 * (manner.drain_seconds + manner.grace_seconds) + _MARGIN_SECONDS
            for process in _clients(child, mpsd):
                if left := _stop(process, mpsd, manner):
                    return left
    except (MpsdError, NoMpsd, OSError) as exc:
        return f"not ended through mpsd, but by signals: {exc}"
    return ""


def _stop(process: Process, mpsd: Client, manner: Manner) -> str:
    """Stop a process through mpsd.  Return why mpsd left it running, with the prefix _LEFT; empty if it has ended."""
    pid, start_time = process
    call = calls.client_stop(
        pid, start_time=start_time, way="drain", drain_seconds=manner.drain_seconds, grace_seconds=manner.grace_seconds
    )
    try:
        left = [each.why or "no reason given" for each in mpsd.ask(call).processes if not each.has_ended]
    except Refused as exc:
        if exc.code != ErrorCode.NO_SUCH_CLIENT:
            raise
        return ""  # it has ended in the meantime
    return _LEFT + left[0] if left else ""


def _clients(child: Child, mpsd: Client) -> Iterator[Process]:
    """Return the child's processes that use a GPU, with the pids that mpsd reports."""
    group, is_same = {*child.processes, *groups([child.pid])[child.pid]}, mpsd.hello.pid == os.getpid()
    listed = (((each.pid, each.start_time), each.uid) for each in mpsd.pages(calls.client_list()))
    found = eligible(listed, mpsd.hello.uid, is_same_namespace=is_same)
    if child.member is not None:
        found.add((child.member.pid, child.member.start_time))
    return (each for each in sorted(found) if is_in(each, group, is_same_namespace=is_same))
