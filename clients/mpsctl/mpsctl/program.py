"""main(): run one command, and turn each failure into a line on standard error and an exit status."""

from collections.abc import Callable, Sequence

from mpsd_client import Client, Disconnected, ErrorCode, ProtocolError, Refused

from mpsctl.__main__ import NO_MPSD, REFUSED
from mpsctl.arguments import EVERYWHERE, likely
from mpsctl.output import Output, visible
from mpsctl.session import PROGRAM, NoMpsd, Session
from mpsctl.surroundings import Surroundings
from mpsctl.table import parser


def connect(path: str | None) -> Client:
    return Client(path, program=PROGRAM)


def main(words: Sequence[str], surroundings: Surroundings, connect: Callable[[str | None], Client] = connect) -> int:
    """Run a command line and return its exit status.  Raises SystemExit for --help and wrong command lines, KeyboardInterrupt,
    BrokenPipeError."""
    asked, unknown = parser().parse_known_args(words)
    if asked.command is None:
        asked.parser.error(f'unknown argument "{unknown[0]}"' if unknown else "missing: COMMAND")
    if unknown:
        options = [each.name for each in (*asked.command.arguments, *EVERYWHERE) if each.is_option]
        asked.parser.error(f'unknown argument "{unknown[0]}"{likely(unknown[0], options)}')
    out = Output(surroundings, is_json=getattr(asked, "json", False))
    try:
        with Session(asked, out, connect) as session:
            status: int = asked.command.run(session)
            return status
    except (NoMpsd, TimeoutError, Disconnected, ProtocolError) as exc:
        return _fail(surroundings, asked.command.words, str(exc), NO_MPSD)
    except Refused as exc:
        is_strange = exc.code in (ErrorCode.PROTOCOL, ErrorCode.NO_SUCH_METHOD)
        hint = "; mpsctl and mpsd are of different versions" if is_strange else ""
        return _fail(surroundings, asked.command.words, f"{exc.message} ({exc.name}){hint}", REFUSED)
    except BrokenPipeError:
        raise
    except OSError as exc:
        return _fail(surroundings, asked.command.words, f"the answer cannot be written: {exc.strerror}", REFUSED)


def _fail(surroundings: Surroundings, command: str, why: str, status: int) -> int:
    line = " ".join(visible(why).split())
    print(f"{PROGRAM} {command}: {line}", file=surroundings.stderr)
    return status
