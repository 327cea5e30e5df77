"""The command service move: a service goes on on another GPU, with its connections and its work."""

import time

from mpsd_client import ErrorCode, Refused, calls, values

from mpsctl import words
from mpsctl.__main__ import DONE, REFUSED
from mpsctl.arguments import Argument, Command
from mpsctl.commands.services import parse_name
from mpsctl.output import as_json, visible
from mpsctl.quantities import parse_duration, show_size
from mpsctl.session import Session
from mpsctl.starter import reports

WAITS_SECONDS = 600.0
LOOK_SECONDS, AGAIN_SECONDS = 0.5, 0.05
AFTER_SECONDS = 60.0  # beyond the wait: the last barrier and the takeover have limits of their own in mpsd
LOST_SECONDS = 5.0  # without a sign of the move: a service whose replica dies at the end begins anew, and knows of none
_WORDS = {
    "copying": "{rounds} images copied since the move began",
    "yielding": "the active takes its last image",
    "handing": "the replica takes over",
}


class Progress:
    """Prints each change of a move on standard error, a line each; without a terminal only with --json."""

    def __init__(self, session: Session) -> None:
        self._out, self._stderr = session.out, session.out.surroundings.stderr
        self._shown: tuple[str, int, int] | None = None

    def show(self, move: values.Move) -> None:
        now = (move.state, move.rounds, move.behind_bytes)
        if now == self._shown or not (self._out.is_json or self._stderr.isatty()):
            return
        self._shown = now
        if self._out.is_json:
            print(as_json({"state": move.state, "rounds": move.rounds, "steps": move.steps, "behind_bytes": move.behind_bytes}),
                  file=self._stderr, flush=True)  # fmt: skip
        elif text := _WORDS.get(move.state):
            left = f", {show_size(move.behind_bytes)} to copy" if move.behind_bytes else ""
            print(f"{move.state}: {text.format(rounds=move.rounds)}{left}", file=self._stderr, flush=True)


def move(session: Session) -> int:
    asked, progress = session.asked, Progress(session)
    wait = WAITS_SECONDS if asked.wait is None else asked.wait
    found = session.ask(calls.service_move(asked.name, asked.gpu, wait))
    last, known_at = found.move, time.monotonic()
    end = known_at + wait + AFTER_SECONDS
    while last is not None and not _is_over(last) and time.monotonic() < min(end, known_at + LOST_SECONDS):
        progress.show(last)
        if (seen := _next(session, found)) is not None and seen.move is not None:
            found, last, known_at = seen, seen.move, time.monotonic()
        else:
            time.sleep(AGAIN_SECONDS)
    names = words.ordinals(session.all(calls.device_list()))
    if last is None or last.state != "done":
        why = last.why if last is not None and _is_over(last) else _why_not_known(end)
        print(f"mpsctl service move: {asked.name} was not moved: {visible(why)}", file=session.out.surroundings.stderr)
        return REFUSED
    pause = "" if last.pause_ms is None else f"; pause {reports.milliseconds(last.pause_ms)}"
    gpu = words.gpus((last.to_gpu,), names)
    serves = f"pid {last.to_pid} on GPU {gpu} serves {asked.name} in place of pid {last.from_pid}"
    said = f"{serves}, after {last.seconds:.1f} s{pause}"
    session.out.document(last, lambda: said)
    return DONE


def _is_over(of: values.Move) -> bool:
    return of.state in ("done", "cancelled")


def _why_not_known(end: float) -> str:
    is_late = time.monotonic() >= end
    return "it has not ended in time" if is_late else "mpsd knows of no move any more: see `mpsctl service show`"


def _next(session: Session, before: values.Service) -> values.Service | None:
    """Wait for a change, and return the service; None without one: it, or its arena, was removed."""
    try:
        return session.mpsd.ask(calls.service_get(session.asked.name, before.revision, LOOK_SECONDS))
    except Refused as exc:
        if exc.code != ErrorCode.NO_SUCH_ARENA:
            raise
        return None


COMMANDS = (
    Command("service move", "Move a service to another GPU, where a member keeps its replica", move, (
        Argument("name", "of the service, as `mpsctl services` shows it", parse=parse_name),
        Argument("--gpu", "the GPU, by ordinal or UUID", metavar="GPU", instead="where"),
        Argument("--wait", "how long the replica may take to copy what the active changes; otherwise 600s", metavar="DURATION",
                 parse=parse_duration),
    ), "The active serves while images follow each other. Then it stops after a step, and the replica continues from there. A "
       "move that cannot be completed is cancelled, and the service goes on where it was. It goes on if mpsctl is ended."),
)  # fmt: skip
