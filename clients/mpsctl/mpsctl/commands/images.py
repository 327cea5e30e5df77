"""The commands image take and image restore."""

import os
import time
from collections.abc import Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mpsd_client import (
    Client,
    Disconnected,
    ImageError,
    Imager,
    Lost,
    calls,
    image_name,
    images_directory,
    restore_image,
    values,
)

from mpsctl.arguments import Argument, Command
from mpsctl.commands.arenas import parse_mode
from mpsctl.output import Output, as_json, visible
from mpsctl.quantities import parse_duration, show_size
from mpsctl.session import Session
from mpsctl.standstill import CannotStop, Standstill

FAILED = 1
EACH_SECONDS = 1.0
MOST_SECONDS = 6 * 3600.0  # for all bytes of an arena, on a slow disk
STAGE_SECONDS = 10.0  # a writer that was stopped stands still for so long in addition to the time for its work, at most
LOOK_SECONDS = 0.02


class Progress:
    """Prints on standard error each second how much is copied: a line of JSON with --json, else a text on a terminal."""

    def __init__(self, out: Output) -> None:
        self._out, self._stderr = out, out.surroundings.stderr
        self._next = time.monotonic() + EACH_SECONDS
        self._was_shown = False

    def __call__(self, copied: int, to_copy: int) -> None:
        if time.monotonic() < self._next or not (self._out.is_json or self._stderr.isatty()):
            return
        if self._out.is_json:
            print(as_json({"done_bytes": copied, "total_bytes": to_copy}), file=self._stderr, flush=True)
        else:
            print(f"\r{show_size(copied)} of {show_size(to_copy)} ", end="", file=self._stderr, flush=True)
            self._was_shown = True
        self._next = time.monotonic() + EACH_SECONDS

    def end(self) -> None:
        if self._was_shown:
            print(file=self._stderr)


@dataclass(frozen=True, slots=True)
class TakenImage:
    """A complete image."""

    name: str
    arena: str  # or the group
    bytes: int
    new_bytes: int
    directory: str
    stopped_seconds: float | None = None  # with --freeze


def take(session: Session) -> int:
    """Take an image of arenas that no process writes: this process is their writer during that time, so that no other becomes
    it.  Or, with --freeze, of arenas with writers that mpsctl stops for a moment."""
    asked = session.asked
    directory = Path(asked.directory) if asked.directory else images_directory()
    if bool(asked.group) != (len(asked.arena) > 1):
        return _fail(session, "name one arena without --group, or several and --group")
    if asked.parity and not asked.group:
        return _fail(session, "--parity needs two arenas, on two GPUs, at least, and --group")
    arenas: list[values.Arena] = []
    try:
        for name in asked.arena:
            is_sealed = session.ask(calls.arena_get(name)).is_sealed
            reads = is_sealed or asked.freeze is not None
            arenas.append(session.ask(calls.arena_open(name, "read" if reads else "write")))
        image = _take(session, arenas, asked.name or image_name(asked.group or arenas[0].name), asked.group or "", directory)
    except (ImageError, CannotStop) as exc:
        return _fail(session, str(exc))
    finally:
        with suppress(Disconnected):  # this process ends soon, and its openings with it
            for arena in arenas:
                session.ask(calls.arena_close(arena.id))
    session.out.document(image, lambda: _sentence(image))
    return 0


def _take(session: Session, arenas: Sequence[values.Arena], name: str, group: str, directory: Path) -> TakenImage:
    with Imager([_facts(arena) for arena in arenas], directory) as imager, ExitStack() as stack:
        progress = Progress(session.out)
        stack.callback(progress.end)
        for arena in arenas:
            imager.follow_opened(session, arena)
        imager.ask({"do": "prepare", "name": name, "group": group, "parity": int(session.asked.parity or 0)})
        imager.answer("prepared", MOST_SECONDS, progress)
        if session.asked.freeze is not None:
            stopped = _stage_frozen(session, imager, arenas, session.asked.freeze)
        else:
            stopped = None
            _give_facts(session, imager, arenas)
            imager.ask({"do": "stage"})
            imager.answer("staged", MOST_SECONDS, progress)
        found = imager.answer("complete", MOST_SECONDS, progress)
    called = group or arenas[0].name
    return TakenImage(found["name"], called, found["bytes"], found["new_bytes"], str(directory), stopped)


def _give_facts(session: Session, imager: Imager, arenas: Sequence[values.Arena]) -> None:
    with ExitStack() as stack:
        for arena in arenas:
            layout, state = session.ask(calls.arena_layout(arena.id)).fd, session.ask(calls.arena_state(arena.id))
            for descriptor in (layout, state.fd):
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
            kept = None if state.fd is None else (state.fd, state.generation)
            imager.facts(arena.name, arena.commit, arena.generation, layout, kept)


def _stage_frozen(session: Session, imager: Imager, arenas: Sequence[values.Arena], drain: float) -> float:
    """Stop the writers, wait until their work on the GPU has ended, and stage; return for how long they stood still.

    A stopped client blocks its server if another client faults: at the first sign of a fault that may be in a writer's domain
    the writers go on, and the image is given up.  Raises ImageError, CannotStop."""
    writers = _writers(session, arenas)
    domains = _domains(session, writers)
    until = time.monotonic() + drain + STAGE_SECONDS  # before their guards' time begins, after which they go on
    with ExitStack() as stack:
        watch = stack.enter_context(session.new_connection())
        watch.subscribe("fault.opened", "fault.xid")
        frozen = [stack.enter_context(Standstill(*writer, drain + STAGE_SECONDS)) for writer in writers]
        try:
            for each in frozen:
                each.stop()
            if _writers(session, arenas) != writers:
                raise ImageError("an arena has another writer since it was looked for")
            _see_no_fault(watch, domains, drain)
            now = [session.ask(calls.arena_get(arena.name)) for arena in arenas]
            for arena in now:
                imager.follow_opened(session, arena)
            _give_facts(session, imager, now)
            imager.ask({"do": "stage", "until": until})
            while not imager.waits_for_answer(0):
                if time.monotonic() > until:
                    seconds = drain + STAGE_SECONDS
                    raise ImageError(f"the imager did not stage the image within {seconds:g} s: the writers go on")
                _see_no_fault(watch, domains, LOOK_SECONDS)
            imager.answer("staged", LOOK_SECONDS)
        except BaseException:
            imager.close()  # first: the imager then knows that the writers go on
            raise
        for each in frozen:
            each.go_on()
        return max(each.seconds for each in frozen)


def _writers(session: Session, arenas: Sequence[values.Arena]) -> list[tuple[int, int]]:
    """Return the pids and start times of the arenas' writers.

    Raises ImageError: an arena has no writer, or a service has it; or mpsd's pids mean other processes here."""
    if session.mpsd.hello.pid != os.getpid():
        raise ImageError("mpsd runs in another pid namespace: run mpsctl there, since it stops processes by mpsd's pids")
    served = {service.name for service in session.all(calls.service_list())}
    writers = set()
    for arena in arenas:
        found = session.ask(calls.arena_get(arena.name))
        if arena.name in served:
            raise ImageError(f"a service has arena {arena.name}: a standby would take over; let the service take images")
        if found.writer_pid is None or found.writer_start_time is None:
            raise ImageError(f"no process writes arena {arena.name}: take its image without --freeze")
        writers.add((found.writer_pid, found.writer_start_time))
    return sorted(writers)


def _domains(session: Session, writers: Sequence[tuple[int, int]]) -> Set[str | None]:
    """Return the fault domains of the writers, and None among them if mpsd does not know all."""
    found = {(each.pid, each.start_time): each.domain for each in session.all(calls.client_list(limit=1000))}
    return set(map(found.get, writers))


def _see_no_fault(watch: Client, domains: Set[str | None], seconds: float) -> None:
    """Look for so long for a fault that may be in one of the domains.  Raises ImageError."""
    end = time.monotonic() + seconds
    for event in watch.events(seconds):
        known = None if isinstance(event, Lost) else event.facts.get("domain")
        if not known or None in domains or known in domains:
            what = "events were lost" if isinstance(event, Lost) else event.topic
            raise ImageError(f"a client has faulted ({what}) while the writers stood still: they go on")
        if time.monotonic() > end:
            return


def _fail(session: Session, why: str) -> int:
    print(f"mpsctl image take: {visible(why)}", file=session.out.surroundings.stderr)
    return FAILED


def _facts(arena: values.Arena) -> dict[str, object]:
    facts = {"window_bytes": arena.window_bytes, "capacity_bytes": arena.capacity_bytes, "base": arena.base}
    return {"arena": arena.name, "gpu": arena.gpu, **facts}


def _sentence(image: TakenImage) -> str:
    text = f"image {image.name} of {image.arena}: {show_size(image.bytes)}, {show_size(image.new_bytes)} of it new"
    return text if image.stopped_seconds is None else f"{text}; its writer stood still for {image.stopped_seconds:.2f} s"


def restore(session: Session) -> int:
    """Make an arena of an image."""
    asked, progress = session.asked, Progress(session.out)
    lost: list[tuple[int, int]] | None = [] if asked.partial else None
    try:
        arena = restore_image(
            session, asked.image, asked.name or "", arena=asked.arena or "", gpu=asked.gpu or "", directory=asked.directory,
            mode=asked.mode or 0o600, ttl=asked.ttl, told=progress,
            lost=lost,
        )  # fmt: skip
    except ImageError as exc:
        print(f"mpsctl image restore: {visible(str(exc))}", file=session.out.surroundings.stderr)
        return FAILED
    finally:
        progress.end()
    text = f"arena {arena.name} on GPU {arena.gpu}: {show_size(arena.used_bytes)} of image {asked.image}"
    if lost is None:
        session.out.document(arena, lambda: text)
        return 0
    places = ", ".join(f"{show_size(size)} at {offset:#x}" for offset, size in lost)
    session.out.document(asdict(arena) | {"lost": lost}, lambda: f"{text}; zeros, since they were lost: {places or 'none'}")
    return FAILED if lost else 0


_DIRECTORY = Argument("--directory", "of images; otherwise $MPSD_IMAGES, or mpsd/images in ~/.local/state")
COMMANDS = (
    Command("image take", "Take an image of arenas that no process writes, or whose writers are stopped meanwhile", take, (
        Argument("arena", "as `mpsctl arenas` shows it", count="+"),
        Argument("--group", "of several arenas, which the image has at one moment", metavar="NAME"),
        Argument("--parity", "instead of all bytes store the parity of the arenas, each on another GPU, for so many lost GPUs",
                 choices=("1", "2")),
        Argument("--name", "of the image; otherwise the arena's or the group's with the time"),
        Argument("--freeze", "stop the processes that write the arenas for the image's moment; wait so long for their GPU work",
                 metavar="DURATION", parse=parse_duration),
        _DIRECTORY,
    ), "No process can write the arenas meanwhile. A process that writes one takes images itself (docs/images.md), or is "
       "stopped for the image's moment: --freeze."),
    Command("image restore", "Make an arena of an image", restore, (
        Argument("image", "as `mpsd-images list` shows it"),
        Argument("--name", "of the new arena; otherwise as in the image"),
        Argument("--arena", "which, if the image has several"),
        Argument("--gpu", "an ordinal or a UUID; otherwise the GPU of the image"),
        Argument("--partial", "let blocks that are damaged, or that parity cannot rebuild, be zeros; print them, and exit with "
                 "1 if there are any", is_flag=True),
        Argument("--mode", "who may adopt (r) and write (w) the arena, octal, as of a file", metavar="MODE", parse=parse_mode),
        Argument("--ttl", "how long it stays while no process has it open", metavar="DURATION", parse=parse_duration),
        _DIRECTORY,
    ), "The arena has the memory, the layout and the forward state of the image, at other addresses. Of an image with parity, "
       "--arena names the arena that is lost; it is made of the parity and of the others, which have to exist."),
)  # fmt: skip
