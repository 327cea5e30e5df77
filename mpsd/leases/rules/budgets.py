"""Compute the limits, the used amounts, and whether an amount still fits.

Everything that is limited is a *scope*: SMs of a GPU, bytes of a GPU, client slots, one user's quota of any of these.  A lease
or client takes an amount in each scope that it touches.  All amounts are whole numbers, so that sums are exact: SM shares count
in millionths of a percent.  Prose: docs/leases.md, "Budgets".
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

from msgspec import Struct

from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.model.device import Device
from mpsd.model.lease import FULL_PERCENT, Lease

MILLIONTHS = 1_000_000  # of a percent


class ScopeLevel(IntEnum):
    """The owner of a scope's limit.  An entry that waits for its own limit reserves nothing that others need too (queue.py)."""

    LEASE = 0
    USER = 1
    GROUP = 2
    MACHINE = 3


class AmountKind(StrEnum):
    SM = "sm"
    MEMORY = "memory"
    CLIENTS = "clients"
    LEASES = "leases"
    PROCESSES = "processes"


class Scope(NamedTuple):
    """whose: a lease's id, a uid, a group's name; empty for the machine.  gpu: a UUID, or empty."""

    level: ScopeLevel
    kind: AmountKind
    whose: str = ""
    gpu: str = ""


Amounts = Mapping[Scope, int]


class Owner(NamedTuple):
    """The user and the configured groups that quotas apply to; None in place of an Owner: an operator, without quotas."""

    uid: int
    groups: tuple[str, ...] = ()


def to_millionths(percent: float) -> int:
    """Round down, so that parts never add up to more than the whole; 1e-3 corrects errors of the float."""
    return int(percent * MILLIONTHS + 1e-3)


def to_percent(millionths: int) -> float:
    return millionths / MILLIONTHS


def group_key(lease: Lease) -> str:
    """Return the key of the lease's group: with the uid, so that no user joins another's; operators share one namespace."""
    return lease.spec.group if lease.for_all_users else f"{lease.owner_uid}:{lease.spec.group}"


def quota_scopes(owner: Owner | None, kind: AmountKind, gpu: str = "") -> list[Scope]:
    if owner is None:
        return []
    user = Scope(ScopeLevel.USER, kind, str(owner.uid), gpu)
    return [user, *(Scope(ScopeLevel.GROUP, kind, group, gpu) for group in owner.groups)]


def sm_scopes(owner: Owner | None, gpu: str) -> list[Scope]:
    return [*quota_scopes(owner, AmountKind.SM, gpu), Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu=gpu)]


def memory_scopes(owner: Owner | None, gpu: str) -> list[Scope]:
    return [*quota_scopes(owner, AmountKind.MEMORY, gpu), Scope(ScopeLevel.MACHINE, AmountKind.MEMORY, gpu=gpu)]


def lease_amounts(lease: Lease, gpus: Iterable[str], owner: Owner | None) -> dict[Scope, int]:
    """Return the amounts that an active lease reserves.  The number of leases of a GPU is only for messages."""
    spec = lease.spec
    share = to_millionths(spec.sm_percent)
    amounts: dict[Scope, int] = {}
    for gpu in gpus:
        if share:
            amounts |= dict.fromkeys(sm_scopes(owner, gpu), share)
        amounts[Scope(ScopeLevel.MACHINE, AmountKind.LEASES, gpu=gpu)] = 1
        if size := spec.memory_bytes.get(gpu):
            amounts |= dict.fromkeys(memory_scopes(owner, gpu), size)
    return amounts


def place_in(lease_id: int) -> Scope:
    return Scope(ScopeLevel.LEASE, AmountKind.PROCESSES, str(lease_id))


def client_amounts(owner: Owner | None, lease: Lease | None) -> dict[Scope, int]:
    """Return the amounts of a client in addition to its lease's: a client slot, and one of the lease's places."""
    scopes = [*quota_scopes(owner, AmountKind.CLIENTS), Scope(ScopeLevel.MACHINE, AmountKind.CLIENTS)]
    if lease is not None:
        scopes.append(place_in(lease.id))
    return dict.fromkeys(scopes, 1)


class Ledger:
    """Guards that `used` is always the sum of the amounts of all holders.

    freed: the scopes with a decreased amount since the caller last cleared the set.
    """

    def __init__(self) -> None:
        self.used: dict[Scope, int] = {}
        self.freed: set[Scope] = set()
        self._holders: dict[Hashable, Amounts] = {}

    def hold(self, holder: Hashable, amounts: Amounts) -> None:
        """Set the holder's amounts, in place of earlier ones."""
        if self._holders.get(holder, {}) == amounts:
            return
        self.drop(holder)
        if amounts:
            self._holders[holder] = amounts
        for scope, amount in amounts.items():
            self.used[scope] = self.used.get(scope, 0) + amount

    def drop(self, holder: Hashable) -> None:
        held = self._holders.pop(holder, {})
        self.freed |= held.keys()
        for scope, amount in held.items():
            left = self.used[scope] - amount
            if left:
                self.used[scope] = left
            else:
                del self.used[scope]


class ScopeLimits(Struct, frozen=True):
    """The limit of each scope.  places: the number of processes that each lease allows, by its id."""

    settings: AdmissionSettings
    devices: Sequence[Device]
    places: Mapping[str, int]
    quota_of: Callable[[int], Quota]

    def of(self, scope: Scope) -> int | None:
        """Return the limit of the scope; None: no limit."""
        if scope.level is ScopeLevel.LEASE:
            return self.places.get(scope.whose, 0)
        if scope.level is ScopeLevel.USER:
            return _of_quota(self.quota_of(int(scope.whose)), scope.kind)
        if scope.level is ScopeLevel.GROUP:
            return _of_quota(self.settings.group_totals.get(scope.whose, Quota()), scope.kind)
        return self._of_machine(scope)

    def sm_count(self, gpu: str) -> int:
        """Return the number of SMs of this GPU; 0 if it is not known."""
        return next((device.multiprocessors for device in self.devices if device.uuid == gpu), 0)

    def _of_machine(self, scope: Scope) -> int | None:
        if scope.kind is AmountKind.CLIENTS:
            return self.settings.max_clients
        if scope.kind is AmountKind.LEASES:
            return None
        total = next((device.total_bytes for device in self.devices if device.uuid == scope.gpu), None)
        if total is None:
            return 0  # the GPU has gone
        if scope.kind is AmountKind.SM:
            return to_millionths(FULL_PERCENT * self.settings.sm_oversubscription)
        return int(total * self.settings.memory_oversubscription)


def _of_quota(quota: Quota, kind: AmountKind) -> int | None:
    if kind is AmountKind.SM:
        return None if quota.sm_percent is None else to_millionths(quota.sm_percent)
    return {AmountKind.MEMORY: quota.memory_bytes, AmountKind.CLIENTS: quota.clients, AmountKind.LEASES: quota.leases}[kind]


def first_blocked(
    amounts: Amounts, limit_of: Callable[[Scope], int | None], used: Mapping[Scope, int], aside: Mapping[Scope, int]
) -> Scope | None:
    """Return the scope of the lowest level without enough room; `aside` is reserved for others ahead."""
    blocked = None
    for scope, amount in amounts.items():
        if blocked is not None and scope.level >= blocked.level:
            continue
        limit = limit_of(scope)
        if limit is not None and used.get(scope, 0) + aside.get(scope, 0) + amount > limit:
            blocked = scope
    return blocked


def shortage(scope: Scope, amounts: Amounts, limits: ScopeLimits, used: Mapping[Scope, int], aside: int = 0) -> str:
    """Return in words: the requested, used and total amount, the holders, and what is set aside for entries ahead."""
    taken, limit = used.get(scope, 0), limits.of(scope) or 0
    if scope.kind is AmountKind.PROCESSES:
        ended = used.get(scope._replace(kind=AmountKind.MEMORY), 0)
        words = f", {ended} of which ended, and their memory is not free yet" if ended else ""
        return f"lease {scope.whose} has {taken} of its {limit} processes{words}"
    show = functools.partial(_quantity, scope, limits.sm_count(scope.gpu) if scope.kind is AmountKind.SM else 0)
    figures = f"{show(amounts[scope])} asked, {show(taken)} of {show(limit)} taken"
    if scope.level is ScopeLevel.MACHINE and scope.gpu:
        figures += f" by {_holders(scope.gpu, used)}"
    if aside:
        figures += f", {show(aside)} set aside for those ahead"
    of_gpu = f"{scope.gpu}, " if scope.gpu else ""
    return f"{_WHOSE[scope.level].format(scope.whose)}{of_gpu}{_WORDS.get(scope.kind, scope.kind.value)}: {figures}"


def _holders(gpu: str, used: Mapping[Scope, int]) -> str:
    leases, kept = (used.get(Scope(ScopeLevel.MACHINE, kind, gpu=gpu), 0) for kind in (AmountKind.LEASES, AmountKind.CLIENTS))
    words = f"{leases} {'lease' if leases == 1 else 'leases'}"
    return f"{words} and {kept} clients outside of leases" if kept else words


_WHOSE = {
    ScopeLevel.USER: "quota of user {}, ",
    ScopeLevel.GROUP: "quota of group {}, ",
    ScopeLevel.MACHINE: "",
}
_WORDS = {AmountKind.SM: "SMs"}


def _quantity(scope: Scope, sm_count: int, amount: int) -> str:
    """Format an amount.  sm_count: SMs of the GPU, to show a share in SMs; 0: show percent."""
    if scope.kind is AmountKind.SM and sm_count:
        return f"{round(amount * sm_count / (FULL_PERCENT * MILLIONTHS), 2):g}"
    if scope.kind is AmountKind.SM:
        return f"{to_percent(amount):.6g} %"
    return f"{amount >> 20} MiB" if scope.kind is AmountKind.MEMORY else str(amount)
