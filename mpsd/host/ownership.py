"""Decide whether a user may end a process: it may run another user's program by now (setuid).

A process stays the same process when it executes another program, also one of root's; its pidfd stays valid, and so do the
connections that its children have inherited.  So whatever mpsd ends or suspends on account of a user is checked here before
each signal.  Prose: docs/security.md.
"""

import os

from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING
from mpsd.model.stop import Asker

ANOTHERS = "it is another user's by now"
USER_UNREAD = "its user could not be read"
_ROOT, _NO_USER = 0, -1  # the latter is the uid of none


def may_end(asker: Asker, pid: int) -> bool:
    """Return whether the caller may end the process as it is now; False if that is not known."""
    if asker.uid is None:
        return True
    namespaces = () if asker.bound is EVERYTHING else processes.pid_namespaces(pid)
    return asker.may_end(processes.sole_uid(pid), namespaces)


def has_uid_of(asker: Asker, pid: int) -> bool:
    """Return whether the process has the caller's effective uid; True for an operator.

    It never waits.  So ask it before any read of a process that the caller names: a caller who holds the directory of another
    user's process could otherwise keep mpsd from reading all of that user's.
    """
    return asker.uid is None or (processes.owner(pid) or (_NO_USER,))[0] == asker.uid


def is_ones_own(asker: Asker, pid: int) -> bool | None:
    """Return whether the caller may end the process as it is now; None if that is unknown, as while a user holds its /proc."""
    if not has_uid_of(asker, pid):
        return False
    if may_end(asker, pid):
        return True
    is_known = processes.uids(pid) and (asker.bound is EVERYTHING or processes.pid_namespaces(pid))
    return False if is_known else None


def on_account_of(uid: int | None) -> Asker:
    """Return the caller as which mpsd ends a user's process.

    uid: the process's when it connected.  None: not known; then mpsd may end no process on that account.
    """
    if uid is None:
        return Asker(_NO_USER, 0, is_mpsd=True)
    return Asker(None if uid in (_ROOT, os.geteuid()) else uid, 0, is_mpsd=True)


def is_anothers(process: ProcessId, uid: int | None) -> bool:
    """Return whether the process lives, and its user of before may not end it any more.  uid: as for `on_account_of`."""
    return not may_end(on_account_of(uid), process.pid) and processes.is_alive(process)
