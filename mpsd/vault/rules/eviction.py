"""Decide which arenas expire, and which to evict when room is short.  Pure."""

from collections import Counter
from collections.abc import Iterable

from mpsd.model.arena import Arena
from mpsd.vault.rules.settings import Eviction, VaultSettings


def expires_at(arena: Arena) -> float | None:
    """Return the time at which the arena expires; None if it stays."""
    if arena.is_held or arena.ttl_seconds is None or arena.unheld_since is None:
        return None
    return arena.unheld_since + arena.ttl_seconds


def plan_eviction(
    arenas: Iterable[Arena], gpu: str, wanted_bytes: int, uid: int, now: float, settings: VaultSettings
) -> list[Arena]:
    """Choose arenas that the settings allow to evict, the longest unheld first, until they free `wanted_bytes`."""
    may = [arena for arena in arenas if arena.gpu == gpu and arena.used_bytes and _may_go(arena, uid, now, settings)]
    chosen, freed = [], 0
    for arena in sorted(may, key=lambda one: (one.unheld_since or 0.0, one.id)):
        if freed >= wanted_bytes:
            break
        chosen.append(arena)
        freed += arena.used_bytes
    return chosen


def why_not_more(arenas: Iterable[Arena], gpu: str, uid: int, settings: VaultSettings, *, sees_all: bool) -> str:
    """Explain why the arenas on the GPU that this user may see stay, by the number of arenas for each reason."""
    if settings.eviction is Eviction.OFF:
        return "mpsd evicts no arena: vault.eviction is off"
    found = Counter(_why_not(arena) for arena in arenas if arena.gpu == gpu and (sees_all or arena.owner_uid == uid))
    left = ", ".join(f"{number} {why}" for why, number in sorted(found.items())) or "none"
    if sees_all:
        return f"the arenas that are left there: {left}"
    others = "none that may go now" if settings.evicts_all else "none may go (vault.evict_from)"
    return f"your arenas that are left there: {left}; of other users: {others}"


def _why_not(arena: Arena) -> str:
    if arena.is_held:
        return "open in a process"
    return "not expired (vault.eviction)" if arena.used_bytes else "without memory"


def _may_go(arena: Arena, uid: int, now: float, settings: VaultSettings) -> bool:
    if arena.is_held or not (settings.evicts_all or arena.owner_uid == uid):
        return False
    if settings.eviction is Eviction.EXPIRED:
        end = expires_at(arena)
        return end is not None and end <= now
    return settings.eviction is Eviction.UNHELD
