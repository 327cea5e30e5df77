"""Fill an empty arena with its newest image, in the process that writes it.

`restore_if_missing` makes a new arena, if no process has the old one open.  A process may have one that lost its memory, since
a keeper of the vault has died, or that its killed restorer left incomplete: the next writer fills it in place.
Prose: mpsd's docs/images.md, "Restoring an image".
"""

import os
from collections.abc import Callable

from mpsd_client import _calls as calls
from mpsd_client._arena import Arena
from mpsd_client._client import Client
from mpsd_client._imager import NoSuchImage
from mpsd_client._record import Record
from mpsd_client._restoring import FILL_SECONDS, KILLED_TTL, ImageSource, has_images, images_place


def fill_if_empty(
    arena: Arena, path: str | os.PathLike[str] | None, directory: str | os.PathLike[str] | None, ttl: float,
    begun: Callable[[], object] = lambda: None,
) -> tuple[bool, Record | None]:  # fmt: skip
    """Fill the arena, which this process writes, with the newest image if it has neither memory nor a layout.

    Return whether it has the image's memory and layout now, and the image's last record.  ttl: as for Arena.create.  begun:
    called before the imager starts, which may wait for a place at MPS.  Raises as restore_image does: the arena then stays
    empty, and the next writer tries again.
    """
    if arena.layout is not None or arena.used_bytes or not has_images(images_place(directory)):
        return False, None
    begun()
    try:
        source = ImageSource("", arena.name, directory, arena.gpu)
    except NoSuchImage:
        return False, None
    with source, Client(path, program="mpsd_client") as mpsd:
        source.fill(range(source.blocks))
        source.put(mpsd, arena.id, arena.generation, arena.gpu)
        source.imager.answer("filled", FILL_SECONDS)
        state = source.state(arena.generation)
        if mpsd.ask(calls.arena_get(arena.name)).ttl_seconds == KILLED_TTL:  # of a killed restorer
            mpsd.ask(calls.arena_change(arena.id, ttl_seconds=ttl))
        mpsd.ask(calls.arena_commit(arena.id, arena.generation, source.layout, None if state is None else state.fd))
        arena.refresh()
        return True, source.record()
