"""The command image take."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from mpsd_client import Disconnected, ImageError, Imager, calls, image_name, images_directory, values

from mpsctl.arguments import Argument, Command
from mpsctl.output import visible
from mpsctl.quantities import show_size
from mpsctl.session import Session

FAILED = 1
MOST_SECONDS = 6 * 3600.0  # for all bytes of an arena, on a slow disk


@dataclass(frozen=True, slots=True)
class TakenImage:
    """A complete image."""

    name: str
    arena: str
    bytes: int
    new_bytes: int
    directory: str


def take(session: Session) -> int:
    """Take an image of an arena that no process writes: this one is its writer meanwhile, so no other can become it."""
    asked = session.asked
    directory = Path(asked.directory) if asked.directory else images_directory()
    is_sealed = session.ask(calls.arena_get(asked.arena)).is_sealed
    arena = session.ask(calls.arena_open(asked.arena, "read" if is_sealed else "write"))
    try:
        image = _take(session, arena, asked.name or image_name(arena.name), directory)
    except ImageError as exc:
        print(f"mpsctl image take: {visible(str(exc))}", file=session.out.surroundings.stderr)
        return FAILED
    finally:
        with suppress(Disconnected):  # this process ends soon, and its opening with it
            session.ask(calls.arena_close(arena.id))
    session.out.document(image, lambda: _sentence(image))
    return 0


def _take(session: Session, arena: values.Arena, name: str, directory: Path) -> TakenImage:
    facts = {"window_bytes": arena.window_bytes, "capacity_bytes": arena.capacity_bytes, "base": arena.base}
    imager = Imager({"arena": arena.name, "gpu": arena.gpu, **facts}, directory)
    with ExitStack() as stack:
        stack.callback(imager.close)
        imager.follow(_pages(session, arena))
        layout, state = session.ask(calls.arena_layout(arena.id)).fd, session.ask(calls.arena_state(arena.id))
        for descriptor in (layout, state.fd):
            if descriptor is not None:
                stack.callback(os.close, descriptor)
        imager.ask({"do": "prepare", "name": name})
        imager.answer("prepared", MOST_SECONDS)
        imager.stage(arena.commit, arena.generation, layout, None if state.fd is None else (state.fd, state.generation))
        imager.answer("staged", MOST_SECONDS)
        found = imager.answer("complete", MOST_SECONDS)
    return TakenImage(found["name"], arena.name, found["bytes"], found["new_bytes"], str(directory))


def _pages(session: Session, arena: values.Arena) -> Iterator[tuple[Sequence[tuple[int, int, int]], Sequence[int]]]:
    after = None
    while True:
        page = session.ask(calls.arena_take(arena.id, after))
        yield [(row[0], row[1], row[2]) for row in page.items], page.fds
        after = page.next
        if after is None:
            return


def _sentence(image: TakenImage) -> str:
    return f"image {image.name} of arena {image.arena}: {show_size(image.bytes)}, {show_size(image.new_bytes)} of it new"


COMMANDS = (
    Command("image take", "Take an image of an arena that no process writes", take, (
        Argument("arena", "as `mpsctl arenas` shows it"),
        Argument("--name", "of the image; otherwise the arena's with the time"),
        Argument("--directory", "of images; otherwise $MPSD_IMAGES, or mpsd/images in ~/.local/state"),
    ), "No process can write the arena meanwhile. A process that writes it takes images itself (docs/images.md)."),
)  # fmt: skip
