"""Check access to an arena by its mode, which is read as that of a file.

A writer takes over the present contents, and so reads them: writing needs both bits.  The execute bits mean nothing.
"""

from collections.abc import Sequence

from mpsd.model import sorted_numbers
from mpsd.model.arena import Access

_READ, _WRITE = 4, 2
_OWNER, _GROUP, _OTHERS = 6, 3, 0  # positions of each class's bits, from the right
_NEEDED = {Access.READ: _READ, Access.WRITE: _READ | _WRITE}


def may(access: Access, mode: int, owner_uid: int, owner_gid: int, uid: int, gids: Sequence[int]) -> bool:
    """Return whether the user may access the arena.  gids: sorted; a list of arenas asks for each, and they can be 65,536.

    As for files, the first class of owner, group and others that the user is in decides.  Callers check operators before.
    """
    place = _OWNER if uid == owner_uid else _GROUP if sorted_numbers.has(gids, owner_gid) else _OTHERS
    needed = _NEEDED[access]
    return (mode >> place) & needed == needed
