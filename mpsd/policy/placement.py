"""Choose the fault domain that a new client joins.

The rules, in order (docs/domains.md, "Placement"):

1. a process that is in a domain stays in it while the domain lives (the caller checks this: it knows the process);
2. only domains that are READY and have a free place; with clients, only those of the same key and the same user;
3. of these one without others of its service; then the requested one; then one with the same key; then the fullest,
   because two busy domains on one GPU time-slice; then one that has served before; then the oldest;
4. if none is left, or others of its service are in all of them: create one while the bound allows it, or wait for one
   that is starting; the last quarter of the domains is for users without one, so a user who has a domain gets none of them,
   unless it is an operator;
5. else one where others of its service are;
6. else wait, and give the reason.

In EXCLUSIVE_PROCESS compute mode a GPU admits one MPS server: then mpsd has one domain, which queues other users itself as the
vendor's does, and no client is moved away from a fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mpsd.model import DomainState, DomainView


@dataclass(frozen=True, slots=True)
class Ask:
    """A process to be placed.

    uid: its user.  gpus: the UUIDs of the GPUs that its domain must have been started with.  key: of a domain that it does not
    share with clients of other keys; empty: it shares.  wish: the domain that an operator requests for it; empty: none.  avoid:
    domains to keep out of if possible, since others of its service are there.
    """

    uid: int
    gpus: frozenset[str]
    key: str = ""
    wish: str = ""
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """`max_domains`: for each set of GPUs.  `is_multiuser`: one server serves all users.  `operators`: may take all domains."""

    max_domains: int
    is_multiuser: bool = False
    is_exclusive: bool = False
    operators: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Join:
    domain: str


@dataclass(frozen=True, slots=True)
class Create:
    gpus: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """is_own: the asker's user can end the wait, or brought it about: a further user need not wait."""

    reason: str
    is_own: bool = False


_KEPT_SHARE = 4  # one domain in so many is kept for users without one, so that no user takes them all
_KEPT = "its user has fault domains, and the others are kept for users who have none"
_COMING = (DomainState.STARTING, DomainState.RECYCLING)  # a DEAD one pauses before it starts: a new one is quicker
_CLOSED_BY_CLIENTS = (DomainState.READY, DomainState.FAULT, DomainState.SILENT)  # a user may stop or end its vendor server

_MOST_DEAD = 2  # if these do not start, another will not either, and would only take the place of one that does


def place(ask: Ask, domains: Sequence[DomainView], rules: Rules) -> Join | Create | Wait:
    ours = [domain for domain in domains if domain.gpus == ask.gpus and domain.state is not DomainState.GONE]
    open_to_ask = [domain for domain in ours if _may_join(ask, domain, rules)]
    if _has_enough(ask, ours, rules):
        theirs = [domain for domain in open_to_ask if domain.clients]
        if not theirs:
            return Wait(_KEPT, _is_own_doing(ask, ours))
        return _join(ask, [each for each in theirs if each.name not in ask.avoid] or theirs)
    if apart := [domain for domain in open_to_ask if domain.name not in ask.avoid]:
        return _join(ask, apart)
    if coming := [domain for domain in ours if domain.state in _COMING and not domain.clients]:
        failed = next((f"; before, {domain.trouble}" for domain in coming if domain.trouble), "")
        return Wait(f"its fault domain is starting{failed}")
    dead = [domain for domain in ours if domain.state is DomainState.DEAD]
    if len(dead) >= _MOST_DEAD and not open_to_ask:
        return Wait(f"no further fault domain starts: {', '.join(map(_in_words, dead))}")
    if len(ours) < (1 if rules.is_exclusive else rules.max_domains):
        return Create(ask.gpus)
    return _join(ask, open_to_ask) if open_to_ask else Wait(_why(ours, rules), bool(ask.key) or _is_own_doing(ask, ours))


def _has_enough(ask: Ask, ours: Sequence[DomainView], rules: Rules) -> bool:
    """Return whether this user gets no further domain: the last ones are kept for users without one."""
    if rules.is_multiuser or rules.is_exclusive or ask.uid in rules.operators:
        return False
    taken = [domain for domain in ours if domain.clients]
    kept, left = rules.max_domains // _KEPT_SHARE, rules.max_domains - len(taken)
    return 0 < left <= kept and any(domain.uid == ask.uid for domain in taken)


def _is_own_doing(ask: Ask, ours: Sequence[DomainView]) -> bool:
    """Whether this user's own clients fill, faulted, stopped or wore out a domain, so that it takes no further one."""
    return any(
        domain.uid == ask.uid and domain.clients and (domain.state in _CLOSED_BY_CLIENTS or domain.is_worn) for domain in ours
    )


def _join(ask: Ask, domains: Sequence[DomainView]) -> Join:
    return Join(min(domains, key=lambda domain: _preference(ask, domain)).name)


def _may_join(ask: Ask, domain: DomainView, rules: Rules) -> bool:
    if domain.state is not DomainState.READY or domain.clients >= domain.capacity:
        return False
    if domain.clients and domain.key != ask.key:
        return False
    return rules.is_multiuser or rules.is_exclusive or domain.uid in (None, ask.uid) or not domain.clients


def _preference(ask: Ask, domain: DomainView) -> tuple[bool, bool, int, bool, int]:
    return (domain.name != ask.wish, domain.key != ask.key, -domain.clients, not domain.is_public, domain.number)


def _why(domains: Sequence[DomainView], rules: Rules) -> str:
    if rules.is_exclusive:
        return f"the GPU is in EXCLUSIVE_PROCESS mode and its only domain is {domains[0].state.value}"
    return f"all {len(domains)} domains are taken: {', '.join(map(_in_words, domains))}"


def _in_words(domain: DomainView) -> str:
    trouble = f" ({domain.trouble})" if domain.trouble else ""
    return f"{domain.name} {domain.state.value}{trouble} {domain.clients}/{domain.capacity} uid {domain.uid}"
