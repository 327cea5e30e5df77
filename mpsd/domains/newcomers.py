"""Detect a domain in which newcomers no longer get a context, and have it replaced.

A vendor server can come into a state in which it still answers ACTIVE and refuses every context: one answered all with 401
ILLEGAL_STATE, after ends of clients that leaked in it (H200, docs/decisions/027).  Its log and its commands do not show this.
The same is seen of programs that end before they have a context.  So while clients of other users are in the domain, as with
-multiuser-server, the failures of fewer than three users do not close it: one person has two shares, with a range of
/etc/subuid.  All users of a container count as one: root can take any uid there, without a user namespace.  But a user
whose own newcomers fail in a row gets another domain, if one takes it: by staying at a worn server, one user would keep all
others from a context.
"""

import structlog

from mpsd.domains.newcomer_failures import MOST_FAILURES
from mpsd.domains.pool import Pool

log = structlog.get_logger()
ROOM_FOR_A_CONTEXT_BYTES = 1 << 30  # a context takes 516 MiB on an H200; with less, its absence shows nothing of the server
_LEAST_USERS = 3  # where others are in the domain


class Newcomers:
    """Guards that a domain takes no newcomers after several failed in a row, until it has fresh servers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def note_end(self, domain_name: str, had_context: bool, uid: int | None, container: str = "") -> None:
        """Record the end of a client that had asked for a context in this domain; container: its outermost one."""
        domain, share_of = self._pool.domains.get(domain_name), self._pool.ranges.share_of
        if domain is None:
            return
        failures, share = domain.failures, None if uid is None else share_of(uid)
        if had_context or domain.is_ill or domain.is_draining:
            failures.last.clear()
            if had_context and share is not None:  # of another user it may have been made elsewhere
                failures.of_user.pop(share, None)
            return
        failures.last.append((share, container))
        failing = {share for share, _ in failures.last if share is not None}
        apart = {container or share for share, container in failures.last if share is not None}
        others = {share_of(each) for each in domain.uids.values()} - failing
        if len(failures.last) < MOST_FAILURES or (others and min(len(failing), len(apart)) < _LEAST_USERS):
            if share is not None and failures.count(share) == MOST_FAILURES:  # rules/placement.py keeps the user out now
                effect = "its next ones go to another domain, if one takes them"
                log.warning("domain.failing", domain=domain.name, uid=share, failures=MOST_FAILURES, effect=effect)
            return
        log.error(
            "domain.worn",
            domain=domain_name,
            failures=len(failures.last),
            effect="it takes no new clients, and gets fresh servers when its clients have ended",
        )
        failures.last.clear()
        domain.is_draining = domain.is_worn = True
        self._pool.notify()
