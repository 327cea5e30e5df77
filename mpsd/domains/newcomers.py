"""Detect a domain in which newcomers no longer get a context, and have it replaced.

A vendor server can come into a state in which it still answers ACTIVE and refuses every context: one answered all with 401
ILLEGAL_STATE, after ends of clients that leaked in it (H200, docs/decisions/027).  Its log and its commands do not show this.
A program that ends before it has a context looks the same.  So while clients of other users are in the domain, as with
-multiuser-server, the failures of fewer than three users do not close it: one person has two shares, with a range of
/etc/subuid.  But a user whose own newcomers fail in a row gets another domain, if one takes it: else a user who wears a
server out, and stays, would keep all others from a context.
"""

import structlog

from mpsd.domains.domain import MOST_FAILURES, Domain
from mpsd.domains.pool import Pool

log = structlog.get_logger()
ROOM_FOR_A_CONTEXT_BYTES = 1 << 30  # a context takes 516 MiB on an H200; with less, its absence shows nothing of the server
_LEAST_USERS = 3  # where others are in the domain
_MOST_COUNTED = 1024  # users of a domain whose failures are counted


class Newcomers:
    """Guards that a domain takes no newcomers after several failed in a row, until it has fresh servers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._failures: dict[str, list[int | None]] = {}  # by domain: the share of each user who failed last, in a row

    def note_end(self, domain_name: str, had_context: bool, uid: int | None) -> None:
        """Record the end of a client that had asked for a context in this domain."""
        domain, share_of = self._pool.domains.get(domain_name), self._pool.ranges.share_of
        share = None if uid is None else share_of(uid)
        if had_context or domain is None or domain.is_ill or domain.is_draining:
            self._failures.pop(domain_name, None)
            if had_context and domain is not None and share is not None:  # of another user it may have been made elsewhere
                domain.failures.pop(share, None)
            return
        users = self._failures.setdefault(domain_name, [])
        users.append(share)
        failing = {*users} - {None}
        others = {share_of(each) for each in domain.uids.values()} - failing
        if len(users) < MOST_FAILURES or (others and len(failing) < _LEAST_USERS):
            del users[:-MOST_FAILURES]
            if share is not None:
                self._count(domain, share)
            return
        del self._failures[domain_name]
        log.error(
            "domain.worn",
            domain=domain_name,
            failures=len(users),
            effect="it takes no new clients, and gets fresh servers when its clients have ended",
        )
        domain.is_draining = domain.is_worn = True
        self._pool.notify()

    def _count(self, domain: Domain, share: int) -> None:
        """Count a failure of this user: rules/placement.py keeps one with MOST_FAILURES in a row out of the domain."""
        domain.failures[share] = count = domain.failures.pop(share, 0) + 1
        if len(domain.failures) > _MOST_COUNTED:
            del domain.failures[next(iter(domain.failures))]
        if count == MOST_FAILURES:
            effect = "its next ones go to another domain, if one takes them"
            log.warning("domain.failing", domain=domain.name, uid=share, failures=count, effect=effect)
