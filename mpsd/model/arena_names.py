"""Resolve the name of an arena: `NAME` means the user's own arena or root's, `UID:NAME` that of the named user.

Every user can make an arena of any free name and let all others write it.  A program that took over such an arena by its name
alone would commit its weights and its forward state to memory that the maker of the arena reads.  A process in a container
without a user namespace can take any uid, root's too: so NAME also means only what was made in the user's own pid namespace or
in mpsd's.
Prose: docs/vault.md, "Whose arena a name means".
"""

from mpsd.model.arena import Arena
from mpsd.model.reach import EVERYTHING, NOTHING, Bound

_ROOT = 0


def split(text: str) -> tuple[int | None, str]:
    """Return the uid before the name, or None, and the name."""
    owner, colon, name = text.rpartition(":")
    return (int(owner) if colon else None), name


def is_meant(text: str, arena: Arena) -> bool:
    """Return whether the text can name that arena."""
    owner, name = split(text)
    return name == arena.name and owner in (None, arena.owner_uid)


def why_not_use(text: str, arena: Arena, uid: int, bound: Bound = EVERYTHING) -> str:
    """Return why this user, in the pid namespace of that bound, may not use the arena by this name; empty if it may."""
    if split(text)[0] is not None:
        return ""
    owned = f"{arena.owner_uid}:{arena.name}"
    if arena.pid_namespace is not None and (arena.pid_namespace == NOTHING or arena.pid_namespace != bound):
        return f"arena {arena.name} of user {arena.owner_uid} was made in another container: name it {owned} to use it"
    if arena.owner_uid in (uid, _ROOT):
        return ""
    return f"arena {arena.name} belongs to user {arena.owner_uid}, and you are user {uid}: name it {owned} to use it"
