"""Check access to an arena by its mode, which is read as that of a file.

A writer takes over the present contents, and so reads them: writing needs both bits.  The execute bits mean nothing.
"""

from collections.abc import Collection

from mpsd.model.arena import Access

_READ, _WRITE = 4, 2
_OWNER, _GROUP, _OTHERS = 6, 3, 0  # positions of each class's bits, from the right
_NEEDED = {Access.READ: _READ, Access.WRITE: _READ | _WRITE}


def may(access: Access, mode: int, owner_uid: int, owner_gid: int, uid: int, gids: Collection[int]) -> bool:
    """Return whether the user may access the arena.

    As for files, the first class of owner, group and others that the user is in decides.  Callers check operators before.
    """
    place = _OWNER if uid == owner_uid else _GROUP if owner_gid in gids else _OTHERS
    needed = _NEEDED[access]
    return (mode >> place) & needed == needed
