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


def why_not_more(arenas: Iterable[Arena], gpu: str, uid: int, settings: VaultSettings) -> str:
    """Explain why the arenas that are left on the GPU stay, by the number of arenas for each reason."""
    if settings.eviction is Eviction.OFF:
        return "mpsd evicts no arena: vault.eviction is off"
    found = Counter(_why_not(arena, uid, settings) for arena in arenas if arena.gpu == gpu)
    left = ", ".join(f"{number} {why}" for why, number in sorted(found.items())) or "none"
    return f"the arenas that are left there: {left}"


def _why_not(arena: Arena, uid: int, settings: VaultSettings) -> str:
    kept = _why_kept(arena, uid, settings)
    return kept or ("not expired (vault.eviction)" if arena.used_bytes else "without memory")


def _why_kept(arena: Arena, uid: int, settings: VaultSettings) -> str:
    """Return why this user's request can never evict the arena as it is now; empty: it could."""
    if not (settings.evicts_all or arena.owner_uid == uid):
        return "of other users (vault.evict_from)"
    return "open in a process" if arena.is_held else ""


def _may_go(arena: Arena, uid: int, now: float, settings: VaultSettings) -> bool:
    if _why_kept(arena, uid, settings):
        return False
    if settings.eviction is Eviction.EXPIRED:
        end = expires_at(arena)
        return end is not None and end <= now
    return settings.eviction is Eviction.UNHELD
