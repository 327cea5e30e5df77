"""Who may what with an arena: its mode, read as that of a file.

Whoever writes takes over what is there, and so reads it: writing needs both bits.  The execute bits have no meaning.
"""

from collections.abc import Collection

from mpsd.arena import Access

_READ, _WRITE = 4, 2
_OWNER, _GROUP, _OTHERS = 6, 3, 0  # how far the bits of each are from the right
_NEEDED = {Access.READ: _READ, Access.WRITE: _READ | _WRITE}


def may(access: Access, mode: int, owner_uid: int, owner_gid: int, uid: int, gids: Collection[int]) -> bool:
    """The first of owner, group and others that somebody belongs to decides, as for files.  Operators are not asked here."""
    place = _OWNER if uid == owner_uid else _GROUP if owner_gid in gids else _OTHERS
    needed = _NEEDED[access]
    return (mode >> place) & needed == needed
