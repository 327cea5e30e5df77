"""The commands arenas, arena show, arena create, arena change, arena remove, and arena make-room."""

from collections.abc import Mapping, Sequence

from mpsd_client import calls, values

from mpsctl import words
from mpsctl.arguments import Argument, Command
from mpsctl.output import Column, facts
from mpsctl.quantities import Unfit, parse_duration, parse_size, show_duration, show_size
from mpsctl.session import Session

FOR_EVER = "none"
_SHOWN_READERS = 20


def parse_mode(text: str) -> int:
    if not (1 <= len(text) <= 4 and set(text) <= set("01234567") and int(text, 8) <= 0o777):
        raise Unfit("an octal mode as of a file, as 600 or 0640")
    return int(text, 8)


def parse_capacity(text: str) -> int:
    size = parse_size(text)
    if not _LEAST_CAPACITY <= size <= _MOST_CAPACITY:
        raise Unfit("2M to 4T")
    return size


def parse_ttl(text: str) -> float:
    """Parse a duration; 0 for none."""
    return 0.0 if text == FOR_EVER else parse_duration(text)


_LEAST_CAPACITY, _MOST_CAPACITY = 2 << 20, 4 << 40  # as mpsd has them
_NAME = Argument("name", "of the arena, as `mpsctl arenas` shows it")
_CAPACITY = Argument("--capacity", "the most memory that it may have", metavar="SIZE", parse=parse_capacity)
_MODE = Argument("--mode", "who may adopt (r) and write (w) it, octal, as of a file", metavar="MODE", parse=parse_mode)
_TTL_HELP = "how long it stays while no process has it open"
_ONE_GPU = "an ordinal or a UUID"


def list_arenas(session: Session) -> int:
    found = session.all(calls.arena_list(limit=1000))
    session.out.document(found, lambda: session.out.table(_columns(session), found, "no arenas"))
    return 0


def _columns(session: Session) -> Sequence[Column[values.Arena]]:
    names = words.ordinals(session.all(calls.device_list()))
    return (
        Column("NAME", lambda arena: arena.name, may_be_cut=True, least=12),
        Column("OWNER", lambda arena: session.user_name(arena.owner_uid), may_be_cut=True, least=6),
        Column("GPU", lambda arena: words.gpus((arena.gpu,), names), may_be_cut=True, least=3),
        Column("USED", lambda arena: show_size(arena.used_bytes), is_number=True),
        Column("OF", lambda arena: show_size(arena.capacity_bytes), is_number=True),
        Column("WRITER", lambda arena: "sealed" if arena.is_sealed else arena.writer_pid, is_number=True),
        Column("READ", lambda arena: len(arena.reader_pids), is_number=True),
        Column("GEN", lambda arena: arena.generation, is_number=True),
        Column("LAYOUT", lambda arena: arena.layout_hash[:8]),
        Column("AGE", lambda arena: _ago(session, arena.created_at), is_number=True),
        Column("LEFT", lambda arena: _left(session, arena), is_number=True),
    )


def _ago(session: Session, moment: float) -> str:
    return show_duration(max(0.0, session.out.surroundings.now() - moment))


def _left(session: Session, arena: values.Arena) -> str | None:
    """Return the time until mpsd removes an unheld arena; None if a process holds it or it has no time to live."""
    if arena.ttl_seconds is None or arena.unheld_since is None:
        return None
    seconds = session.until(arena.unheld_since + arena.ttl_seconds)
    return None if seconds is None else show_duration(seconds)


def show(session: Session) -> int:
    arena = session.ask(calls.arena_get(session.asked.name))
    session.out.document(arena, lambda: facts(_facts(session, arena)))
    return 0


def _facts(session: Session, arena: values.Arena) -> Mapping[str, object]:
    names = words.ordinals(session.all(calls.device_list()))
    end = arena.base + arena.window_bytes
    return {
        "arena": arena.name,
        "number": arena.id,
        "owner": f"{session.user_name(arena.owner_uid)}, group {arena.owner_gid}, mode {arena.mode:03o}",
        "GPU": words.gpus((arena.gpu,), names),
        "memory": f"{words.exact_size(arena.used_bytes)} of {words.exact_size(arena.capacity_bytes)}",
        "addresses": f"{arena.base:#x} to {end:#x}, {words.exact_size(arena.window_bytes)}",
        "committed": f"{arena.allocations} allocations",
        "layout": f"{arena.layout_bytes} bytes, {arena.layout_hash}" if arena.layout_hash else "none",
        "generation": arena.generation,
        "writer": "none: it is sealed" if arena.is_sealed else _pid(arena.writer_pid),
        "readers": _readers(arena.reader_pids),
        "lease": arena.lease_id,
        "age": _ago(session, arena.created_at),
        "unheld for": None if arena.unheld_since is None else _ago(session, arena.unheld_since),
        "stays": _stays(session, arena),
    }


def _pid(pid: int | None) -> str:
    return "none" if pid is None else f"pid {pid}"


def _readers(pids: Sequence[int]) -> str:
    more = f" and {len(pids) - _SHOWN_READERS} more" if len(pids) > _SHOWN_READERS else ""
    return ", ".join(f"pid {pid}" for pid in pids[:_SHOWN_READERS]) + more if pids else "none"


def _stays(session: Session, arena: values.Arena) -> str:
    if arena.ttl_seconds is None:
        return "until it is removed"
    left = _left(session, arena)
    return f"{show_duration(arena.ttl_seconds)} after its last holder" + (f", so {left} from now" if left else "")


def create(session: Session) -> int:
    asked = session.asked
    arena = session.ask(
        calls.arena_create(
            asked.name,
            asked.gpu,
            asked.capacity,
            window_bytes=asked.window,
            mode=0o600 if asked.mode is None else asked.mode,
            ttl_seconds=asked.ttl or None,
        )
    )
    session.out.document(arena, lambda: _sentence(session, arena))
    return 0


def _sentence(session: Session, arena: values.Arena) -> str:
    names = words.ordinals(session.all(calls.device_list()))
    size, gpu = show_size(arena.capacity_bytes), words.gpus((arena.gpu,), names)
    return f"arena {arena.name} may hold {size} of GPU {gpu}, mode {arena.mode:03o}; stays {_stays(session, arena)}"


def change(session: Session) -> int:
    """Change an arena, after looking up its number: people use names, the protocol numbers."""
    asked = session.asked
    session.needs_one_of("capacity", "mode", "ttl")
    arena = session.ask(calls.arena_get(asked.name))
    changed = session.ask(calls.arena_change(arena.id, capacity_bytes=asked.capacity, mode=asked.mode, ttl_seconds=asked.ttl))
    session.out.document(changed, lambda: _sentence(session, changed))
    return 0


def remove(session: Session) -> int:
    gone = session.ask(calls.arena_remove(session.asked.name))
    session.out.document(gone, lambda: f"arena {gone.name} is gone, and {show_size(gone.used_bytes)} with it")
    return 0


def make_room(session: Session) -> int:
    """Free memory of unheld arenas.  Return 1 if less was freed than requested."""
    asked = session.asked
    made = session.ask(calls.arena_make_room(asked.gpu, asked.size))
    why = f"; {made.why}" if made.why else ""
    session.out.document(made, lambda: f"{show_size(made.freed_bytes)} freed{_of(made.names)}{why}")
    return 0 if made.freed_bytes >= asked.size else 1


def _of(names: Sequence[str]) -> str:
    return f", of {', '.join(names)}" if names else ""


COMMANDS = (
    Command("arenas", "List arenas: GPU memory that outlives the process that filled it", list_arenas, (),
            "LEFT is the remaining time of an arena that no process has open. LAYOUT begins the hash of the committed layout."),
    Command("arena show", "Show one arena with its writer and readers", show, (_NAME,)),
    Command("arena create", "Make an empty arena", create, (
        Argument("name", "letters, digits, dots, underscores and hyphens"),
        Argument("--gpu", f"on which GPU: {_ONE_GPU}", default="0"),
        Argument("--capacity", _CAPACITY.help, _CAPACITY.metavar, _CAPACITY.parse, instead="size"),
        Argument("--window", "how many addresses it has; otherwise twice its capacity", metavar="SIZE", parse=parse_size),
        _MODE,
        Argument("--ttl", f"{_TTL_HELP}; otherwise until it is removed", metavar="DURATION", parse=parse_duration),
    )),
    Command("arena change", "Change the capacity of an arena, its mode, and how long it stays", change, (
        _NAME, _CAPACITY, _MODE,
        Argument("--ttl", f"{_TTL_HELP}; {FOR_EVER}: until it is removed", metavar="DURATION", parse=parse_ttl),
    ), "Properties that are not named stay. Processes that have it open keep it open."),
    Command("arena remove", "Remove an arena and its memory; refused while a process has it open", remove, (_NAME,)),
    Command("arena make-room", "Remove arenas that no process has open; exit status 1 if they free too little", make_room, (
        Argument("size", "how much is wanted", metavar="SIZE", parse=parse_size),
        Argument("--gpu", f"of which GPU: {_ONE_GPU}", default="0"),
    ), "The daemon's configuration decides which arenas it may remove."),
)  # fmt: skip
