"""Check a new lease for all but room: which processes it may name, the number of leases, and the process of a pid."""

from collections.abc import Callable

from msgspec.structs import replace

from mpsd.errors import BadRequest, NoRoom, NotAllowed, TooMany
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.leases.quota_limits import QuotaLimits
from mpsd.leases.rules.budgets import AmountKind, Scope, ScopeLevel, first_blocked, quota_scopes, shortage
from mpsd.leases.rules.usage import GROUP_LEASES, Account
from mpsd.model.lease import Lease, LeaseSpec, SelectorKind
from mpsd.model.process import ProcessId


def with_start_time(spec: LeaseSpec, find_process: Callable[[int], ProcessId | None]) -> LeaseSpec:
    """Return the spec with the start time of the pid's present process.  Raise BadRequest without the right process."""
    selector = spec.selector
    if selector.kind is not SelectorKind.PID:
        return spec
    try:
        process = find_process(int(selector.value))
    except OSError as exc:
        raise BadRequest(f"process {selector.value} cannot be read: {exc.strerror}") from None
    if process is None or selector.start_time not in (0, process.start_time):
        raise BadRequest(f"no process {selector.value} is there, as mpsd's pid namespace counts them")
    return replace(spec, selector=replace(selector, start_time=process.start_time))


def same_request(made: Lease, spec: LeaseSpec) -> Lease:
    """Return the lease for a repeated request.  Raise BadRequest if the request differs from the first one."""
    if replace(spec, ttl_seconds=made.spec.ttl_seconds) != made.spec:  # its ttl may differ: the lease may have been renewed
        raise BadRequest(f"request_key: found {spec.request_key!r}; lease {made.id} was made with it, and has other settings")
    return made


def check_draft(draft: Lease, count: int, account: Account, quotas: QuotaLimits) -> None:
    """Check the draft; count: the number of present leases.  Raise NotAllowed, NoRoom or TooMany."""
    selector, owner = draft.spec.selector, quotas.owner_of_lease(draft)
    if selector.kind is SelectorKind.UID and not draft.for_all_users and int(selector.value) != draft.owner_uid:
        raise NotAllowed(f"a lease of user {draft.owner_uid} cannot serve the processes of user {selector.value}")
    most = quotas.settings.max_leases
    if count >= most:
        raise TooMany(f"{count} leases exist, which is the maximum (max_leases)")
    amounts = dict.fromkeys(quota_scopes(owner, AmountKind.LEASES), 1)
    limits, used = quotas.limits(account.places), account.ledger.used
    own = used.get(Scope(ScopeLevel.USER, AmountKind.LEASES, str(owner.uid)), 0) if owner else 0
    if kept := hindrance_of_slots(most, own, count, owner is None, "leases"):
        raise TooMany(f"{kept} (max_leases)")
    if blocked := first_blocked(amounts, limits.of, used, {}):
        raise NoRoom(shortage(blocked, amounts, limits, used))
    if not account.has_room_in_group(draft, quotas.gpus_of(draft.spec)):
        raise TooMany(f"group {draft.spec.group} has {GROUP_LEASES} leases, as many as share what they have")
