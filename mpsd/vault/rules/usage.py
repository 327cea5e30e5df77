"""Count the bytes of arenas by GPU, user and lease, and check whether more fits.  Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from mpsd.errors import NoRoom
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.model.arena import Arena
from mpsd.model.quantities import GIB, MIB
from mpsd.vault.rules.settings import VaultSettings

_WINDOWS_OF_USER = 6 << 40  # bytes of addresses: an eighth of the total
_MOST_OF_USER = 1 << 20  # uids of one user: ranges of /etc/subuid usually have 65,536
_FEW_ALLOCATIONS = 256  # a model that is loaded in large blocks has fewer
_USERS_SHARE = 8  # one user's layouts may take an eighth of all
_UNKNOWN = -1  # the share of arenas whose pid namespace is not known; no pid namespace has the number 1


class Bounds(Struct, frozen=True):
    """The bounds of one arena. gpu_bytes: the memory of the GPU. lease_bytes: the limit of the lease there; None: no limit."""

    settings: VaultSettings
    gpu_bytes: int
    lease_bytes: int | None = None

    @property
    def of_gpu(self) -> int | None:
        if self.settings.memory_bytes is not None:
            return self.settings.memory_bytes
        return None if self.settings.memory_share is None else int(self.gpu_bytes * self.settings.memory_share)

    def of_user(self, arena: Arena) -> int | None:
        return None if self.is_free(arena) else self.settings.user_memory_bytes

    def is_free(self, arena: Arena) -> bool:
        """Return whether the quotas of users do not apply: the owner is an operator."""
        return arena.owner_uid in self.settings.operators and arena.pid_namespace is None


def are_of_one_user(uids: Iterable[tuple[int, int]]) -> bool:
    """Return whether a user may have made the user namespace that maps these ranges of uids, each with its first and last."""
    return sum(last - first + 1 for first, last in uids) <= _MOST_OF_USER


class ArenaAccount:
    """Guards that each byte is counted once: `move` is the only way to count."""

    def __init__(self, share_of: Callable[[int], int] = int) -> None:
        """share_of: the uid that stands for a user with several."""
        self._share_of = share_of
        self._by_gpu: Counter[str] = Counter()
        self._by_user: Counter[tuple[str, int]] = Counter()
        self._by_lease: Counter[tuple[str, int]] = Counter()
        self._allocations: Counter[int] = Counter()  # by the uid that owns the share
        self._layouts: Counter[int] = Counter()
        self._arenas: Counter[int] = Counter()
        self._windows: Counter[int] = Counter()
        self.used_bytes: Mapping[str, int] = self._by_gpu

    def share(self, arena: Arena) -> int:
        """Return the uid that owns the arena's share; minus its pid namespace if it was made in a container.

        Processes there can take any uid: they have one share together, as have all containers that are not known.
        """
        if arena.pid_namespace is not None and not arena.is_of_owner:
            return -arena.pid_namespace or _UNKNOWN
        return self._share_of(arena.owner_uid)

    @property
    def arenas(self) -> int:
        return self._arenas.total()

    @property
    def allocations(self) -> int:
        return self._allocations.total()

    def add(self, arena: Arena) -> None:
        self._count(arena, 1)

    def remove(self, arena: Arena) -> None:
        """Remove the arena; its contents were moved away before."""
        self._count(arena, -1)

    def _count(self, arena: Arena, sign: int) -> None:
        share = self.share(arena)
        self._arenas[share] += sign
        self._windows[share] += sign * arena.window_bytes
        self._layouts[share] += sign * arena.layout_bytes

    def change(self, old: Arena, new: Arena) -> None:
        """Count the arena with a new window or layout."""
        self.remove(old)
        self.add(new)

    def move(self, arena: Arena, growth_bytes: int, allocations: int) -> None:
        """Count a growth of the arena, or a decrease if negative."""
        self._by_gpu[arena.gpu] += growth_bytes
        share = self.share(arena)
        self._by_user[arena.gpu, share] += growth_bytes
        if arena.lease_id is not None:
            self._by_lease[arena.gpu, arena.lease_id] += growth_bytes
        self._allocations[share] += allocations

    def count_layout(self, arena: Arena, growth_bytes: int) -> None:
        """Count so much for a layout that the keeper is about to get; negative: count it no longer."""
        self._layouts[self.share(arena)] += growth_bytes

    # -- checks ------------------------------------------------------------------------------------------------------------

    def check_arena(self, arena: Arena, bounds: Bounds) -> None:
        """Check whether a new arena, or a new capacity, could ever be filled.  Raise NoRoom."""
        for whose, _, limit in self._amounts(arena, bounds):
            if limit is not None and arena.capacity_bytes > limit:
                raise NoRoom(f"{_size(arena.capacity_bytes)} were requested; {whose} may have {_size(limit)}")

    def check_number(self, arena: Arena, bounds: Bounds) -> None:
        """Check whether one more arena may exist.  Raise NoRoom."""
        uid, settings = self.share(arena), bounds.settings
        if self.arenas >= settings.max_arenas:
            raise NoRoom(f"{self.arenas} arenas exist, which is the maximum (vault.max_arenas)")
        if kept := hindrance_of_slots(settings.max_arenas, self._arenas[uid], self.arenas, bounds.is_free(arena), "arenas"):
            raise NoRoom(f"{kept} (vault.max_arenas)")
        if bounds.is_free(arena):
            return
        if self._arenas[uid] >= settings.user_arenas:
            raise NoRoom(f"{_whose(uid)} has {self._arenas[uid]} arenas, and may not have more (vault.user_arenas)")
        self.check_addresses(arena, arena.window_bytes, bounds)

    def check_addresses(self, arena: Arena, growth_bytes: int, bounds: Bounds) -> None:
        """Check whether the user's windows may take so much more.  Raise NoRoom."""
        uid = self.share(arena)
        if growth_bytes > 0 and not bounds.is_free(arena) and self._windows[uid] + growth_bytes > _WINDOWS_OF_USER:
            raise NoRoom(f"the windows of {_whose(uid)} would take more than {_size(_WINDOWS_OF_USER)} of addresses")

    def check_growth(self, arena: Arena, growth_bytes: int, allocations: int, bounds: Bounds) -> None:
        """Check a growth.  Raise NoRoom, which names the bound."""
        if arena.used_bytes + growth_bytes > arena.capacity_bytes:
            found = f"it holds {_size(arena.used_bytes)} of {_size(arena.capacity_bytes)}"
            raise NoRoom(f"arena {arena.name} cannot take {_size(growth_bytes)} more: {found}")
        for whose, used, limit in self._amounts(arena, bounds):
            if limit is not None and growth_bytes > 0 and used + growth_bytes > limit:
                found = f"hold {_size(used)} of {_size(limit)}"
                raise NoRoom(f"{whose} {found}, and {_size(growth_bytes)} more do not fit")
        if allocations > 0:
            self._check_allocations(arena, allocations, bounds)

    def _check_allocations(self, arena: Arena, more: int, bounds: Bounds) -> None:
        uid, settings = self.share(arena), bounds.settings
        if self.allocations + more > settings.max_allocations:
            raise NoRoom(f"{self.allocations} allocations are held, and {more} more do not fit (vault.max_allocations)")
        if not bounds.is_free(arena) and self._allocations[uid] + more > settings.user_allocations:
            found = f"{_whose(uid)} has {self._allocations[uid]} allocations"
            raise NoRoom(f"{found}, and {more} more do not fit (vault.user_allocations)")
        own, total, is_free = self._allocations[uid] + more - 1, self.allocations + more - 1, bounds.is_free(arena)
        if kept := hindrance_of_slots(settings.max_allocations, own, total, is_free, "allocations", _FEW_ALLOCATIONS):
            raise NoRoom(f"{kept} (vault.max_allocations)")

    def check_layout(self, arena: Arena, size: int, bounds: Bounds) -> None:
        """Check the size of a new layout.  Raise NoRoom."""
        most = bounds.settings.layout_bytes
        own = most if bounds.is_free(arena) else most // _USERS_SHARE
        growth, of_user = size - arena.layout_bytes, self._layouts[self.share(arena)]
        if growth > 0 and (self._layouts.total() + growth > most or of_user + growth > own):
            whose = _whose(self.share(arena))
            raise NoRoom(f"a layout of {size} bytes: those of {whose} may have {_size(own)} (vault.layouts)")

    def _amounts(self, arena: Arena, bounds: Bounds) -> tuple[tuple[str, int, int | None], ...]:
        """Return for each bound: the name of the owner, the used bytes, the limit."""
        gpu, uid, lease = arena.gpu, self.share(arena), arena.lease_id
        of_lease = 0 if lease is None else self._by_lease[gpu, lease]
        return (
            ("all arenas of the GPU", self._by_gpu[gpu], bounds.of_gpu),
            (f"the arenas of {_whose(uid)}", self._by_user[gpu, uid], bounds.of_user(arena)),
            (f"the arenas of lease {lease}", of_lease, bounds.lease_bytes),
        )


def _whose(share: int) -> str:
    if share == _UNKNOWN:
        return "the group of containers whose pid namespace is not known"
    return f"user {share}" if share >= 0 else f"container {-share} (its pid namespace)"


def _size(size: int) -> str:
    return f"{size / GIB:.4g} GiB" if size >= GIB else f"{size / MIB:.4g} MiB"
