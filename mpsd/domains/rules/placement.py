"""Choose the fault domain that a new client joins.

The rules, in order (docs/domains.md, "Placement"):

1. a process that is in a domain stays in it while the domain lives (the caller checks this: it knows the process);
2. only domains that are READY and have a free place; with clients, only those of the same key and the same user;
3. of these one without other members of the service, in which the user's last newcomers did not fail; then the requested one;
   then one with the same key; then the fullest, because two busy domains on one GPU time-slice; then one that has served
   before; then the oldest;
4. if none is left, or each has one or the other: create one while the bound of each of its GPUs allows it,
   in place of a spare of other GPUs if need be, or wait for one that is starting; the last quarter of a GPU's domains is for
   users without one, so a user who has a domain there gets none of them, unless it is an operator.  If one server serves all
   users, a user who has clients in a domain joins none of the others then; domains that another user closed do not count;
5. else one with other members of the service, or where the user's newcomers failed;
6. else wait, and give the reason.

In EXCLUSIVE_PROCESS compute mode a GPU admits one MPS server: then mpsd has one domain, which queues other users itself as the
vendor's does, and no client is moved away from a fault.
"""

from collections.abc import Sequence

from msgspec import Struct

from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.model.domain import DomainState, DomainView


class PlacementRequest(Struct, frozen=True):
    """A process to be placed.

    uid: its user.  gpus: the UUIDs of the GPUs that its domain must have been started with.  key: of a domain that it does not
    share with clients of other keys; empty: it shares.  wish: the domain that an operator requests for it; empty: none.  avoid:
    domains to keep out of if possible: they have other members of the service.  named: those of `gpus` that it can use,
    since it names them; empty: all.
    """

    uid: int
    gpus: frozenset[str]
    key: str = ""
    wish: str = ""
    avoid: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


class Rules(Struct, frozen=True):
    """`max_domains`: on each GPU.  `is_multiuser`: one server serves all users.  `operators`: may take all domains.  `ranges`:
    whose uids count as one user."""

    max_domains: int
    is_multiuser: bool = False
    is_exclusive: bool = False
    operators: frozenset[int] = frozenset()
    ranges: UidRanges = NO_RANGES


class Join(Struct, frozen=True):
    domain: str


class Create(Struct, frozen=True):
    """instead: empty domains of other GPUs that are retired for it, since a GPU has no room for another."""

    gpus: frozenset[str]
    instead: tuple[str, ...] = ()


class Wait(Struct, frozen=True):
    """is_own: the asker's user can end the wait, or brought it about: a further user need not wait."""

    reason: str
    is_own: bool = False


_KEPT_SHARE = 4  # one domain in so many is kept for users without one, so that no user takes them all
_KEPT = "its user has fault domains, and the remaining ones are kept for users without any"
_COMING = (DomainState.STARTING, DomainState.RECYCLING)  # a DEAD one pauses before it starts: a new one is quicker
# A user may stop or end its vendor server, and cause SM exceptions.
_CLOSED_BY_CLIENTS = (DomainState.READY, DomainState.FAULT, DomainState.SILENT, DomainState.CONTAINED)

_MOST_DEAD = 2  # if these do not start, another will not either, and would only take the place of one that does


def place(ask: PlacementRequest, domains: Sequence[DomainView], rules: Rules) -> Join | Create | Wait:
    alive = [domain for domain in domains if domain.state is not DomainState.GONE]
    ours = [domain for domain in alive if domain.gpus == ask.gpus]
    open_to_ask = [domain for domain in ours if _may_join(ask, domain, rules)]
    share = rules.ranges.share_of(ask.uid)
    avoid = ask.avoid.union(domain.name for domain in ours if share in domain.failing)
    if _has_enough(ask, alive, rules):
        theirs = [domain for domain in open_to_ask if domain.clients and _is_of(ask, domain, rules)]
        if not theirs:
            return Wait(_KEPT, _is_own_doing(ask, [each for each in alive if each.gpus & ask.gpus], rules))
        return _join(ask, [each for each in theirs if each.name not in avoid] or theirs)
    if apart := [domain for domain in open_to_ask if domain.name not in avoid]:
        return _join(ask, apart)
    if coming := [domain for domain in ours if domain.state in _COMING and not domain.clients]:
        failed = next((f"; before, {domain.trouble}" for domain in coming if domain.trouble), "")
        return Wait(f"its fault domain is starting{failed}")
    dead = [domain for domain in ours if domain.state is DomainState.DEAD]
    if len(dead) >= _MOST_DEAD:
        if open_to_ask:
            return _join(ask, open_to_ask)
        return Wait(f"no further fault domain starts: {', '.join(map(_in_words, dead))}")
    full, instead = _full_gpu(ask.gpus, alive, rules)
    if full is None:
        return Create(ask.gpus, instead)
    if open_to_ask:
        return _join(ask, open_to_ask)
    taken = _using(full, ask.gpus, alive) if full else ours
    return Wait(_why(ask, full, taken, rules), bool(ask.key) or _is_own_doing(ask, taken, rules))


def room(gpus: frozenset[str], domains: Sequence[DomainView], rules: Rules) -> int:
    """Return how many more domains of these GPUs there may be."""
    if rules.is_exclusive:
        return 1 - sum(domain.gpus == gpus for domain in domains)
    return min((_room_on(gpu, gpus, domains, rules) for gpu in gpus), default=rules.max_domains - len(domains))


def _room_on(gpu: str, gpus: frozenset[str], domains: Sequence[DomainView], rules: Rules) -> int:
    """Return the room on one GPU.  Of the domains that are being retired, one does not count: its successor may start."""
    using = _using(gpu, gpus, domains)
    return rules.max_domains - len(using) + any(_is_leaving(domain) for domain in using)


def _using(gpu: str, gpus: frozenset[str], domains: Sequence[DomainView]) -> list[DomainView]:
    """Return the domains that use the GPU.  The first domain, which always stays, takes no place from domains of other GPUs."""
    return [domain for domain in domains if gpu in domain.gpus and (domain.number > 1 or domain.gpus == gpus)]


def _is_leaving(domain: DomainView) -> bool:
    is_empty = domain.state is DomainState.DRAINING and not domain.clients and domain.number > 1
    return domain.state is DomainState.STOPPING or is_empty


def _full_gpu(gpus: frozenset[str], domains: Sequence[DomainView], rules: Rules) -> tuple[str | None, tuple[str, ...]]:
    """Return a GPU without room for another domain of these GPUs; or None, and the domains to retire for it.

    An empty text in place of the GPU: all of them.
    """
    if room(gpus, domains, rules) > 0:
        return None, ()
    if rules.is_exclusive:
        return "", ()
    instead: set[str] = set()
    for gpu in sorted(gpus):
        if _room_on(gpu, gpus, domains, rules) > 0:
            continue
        using = _using(gpu, gpus, domains)
        spares = [each.name for each in using if each.gpus != gpus and each.state is DomainState.READY and not each.clients]
        if not spares or any(_is_leaving(domain) for domain in using):
            return gpu, ()
        if not instead.intersection(spares):
            instead.add(spares[-1])
    return (None, tuple(sorted(instead))) if gpus else ("", ())


def _has_enough(ask: PlacementRequest, domains: Sequence[DomainView], rules: Rules) -> bool:
    """Return whether this user gets no further domain: the last ones on a GPU are kept for users without one there."""
    if rules.is_exclusive or ask.uid in rules.operators:
        return False
    kept = rules.max_domains // _KEPT_SHARE
    for gpu in ask.gpus:
        taken = [domain for domain in domains if gpu in domain.gpus and domain.clients]
        left = rules.max_domains - len(taken)
        if left > kept or (left <= 0 and not (kept and rules.is_multiuser)):
            continue
        if any(_is_charged(ask, domain, taken, rules) for domain in taken):
            return True
    return False


def _is_charged(ask: PlacementRequest, domain: DomainView, taken: Sequence[DomainView], rules: Rules) -> bool:
    """Return whether the domain counts against this user's share.

    If users share domains, one user can block a domain in which other users have clients.  A blocked domain counts against the
    user whose stopped client blocks it.  If mpsd does not know that user, the domain counts against a user who is alone
    there, or has clients in several such domains.
    """
    if not _is_of(ask, domain, rules):
        return False
    if not rules.is_multiuser or domain.state is DomainState.READY:
        return True
    share_of = rules.ranges.share_of
    if domain.blocked_uid is not None:
        return share_of(domain.blocked_uid) == share_of(ask.uid)
    unexplained = [each for each in taken if each.state is not DomainState.READY and each.blocked_uid is None]
    is_alone = len({share_of(uid) for uid in domain.users}) <= 1
    return is_alone or sum(_is_of(ask, each, rules) for each in unexplained) > 1


def _is_of(ask: PlacementRequest, domain: DomainView, rules: Rules) -> bool:
    """Return whether clients of this user are in the domain."""
    share_of = rules.ranges.share_of
    users = domain.users or {domain.uid}
    return any(uid is not None and share_of(uid) == share_of(ask.uid) for uid in users)


def _is_own_doing(ask: PlacementRequest, domains: Sequence[DomainView], rules: Rules) -> bool:
    """Whether this user's own clients fill, faulted, stopped or wore out a domain, so that it takes no further one."""
    taken = [domain for domain in domains if domain.clients]
    return any(
        _is_charged(ask, domain, taken, rules) and (domain.state in _CLOSED_BY_CLIENTS or domain.is_worn) for domain in taken
    )


def _join(ask: PlacementRequest, domains: Sequence[DomainView]) -> Join:
    return Join(min(domains, key=lambda domain: _preference(ask, domain)).name)


def _may_join(ask: PlacementRequest, domain: DomainView, rules: Rules) -> bool:
    if domain.state is not DomainState.READY or domain.clients >= domain.capacity:
        return False
    if domain.clients and domain.key != ask.key:
        return False
    return rules.is_multiuser or rules.is_exclusive or domain.uid in (None, ask.uid) or not domain.clients


def _preference(ask: PlacementRequest, domain: DomainView) -> tuple[bool, bool, int, bool, int]:
    return (domain.name != ask.wish, domain.key != ask.key, -domain.clients, not domain.is_public, domain.number)


def _why(ask: PlacementRequest, gpu: str, domains: Sequence[DomainView], rules: Rules) -> str:
    if rules.is_exclusive:
        return f"the GPU is in EXCLUSIVE_PROCESS mode and its only domain is {domains[0].state.value}"
    of_gpu = "" if all(domain.gpus == ask.gpus for domain in domains) else f" of {gpu}"
    return f"all {len(domains)} domains{of_gpu} are taken: {', '.join(map(_in_words, domains))}"


def _in_words(domain: DomainView) -> str:
    trouble = f" ({domain.trouble})" if domain.trouble else ""
    return f"{domain.name} {domain.state.value}{trouble} {domain.clients}/{domain.capacity} uid {domain.uid}"
