"""The manual page, made from the table of commands: `python -m mpsctl.manual > docs/man/mpsctl.1` (make docs).

The text is reproducible: it has a version, but no date.
"""

import sys
from collections.abc import Iterator

from mpsctl import __version__
from mpsctl.arguments import EVERYWHERE, Argument, Command
from mpsctl.table import COMMANDS

DESCRIPTION = (
    "Speaks with mpsd, the daemon behind nvidia-cuda-mps-control, on its socket mpsd.sock. Everybody may ask; a user sees and "
    "changes what is theirs, an operator (root, the daemon's own user, members of its admin group) everything."
)
QUANTITIES = (
    ("SIZE", "A number and K, M, G or T, which are powers of 1024: 4G, 512M, 1.5G."),
    ("DURATION", "A number and ms, s, m, h or d; parts add up: 30s, 5m, 2h, 1h30m."),
    ("SHARE", "Of the SMs of a GPU: a percentage, 30%, or so many, 40."),
    ("GPU", "An ordinal or a UUID, as mpsctl devices shows them."),
    ("USER", "A name or a number."),
)
STATUSES = (
    ("0", "Done."),
    ("1", "mpsd said no; or it is not well (health); or the answer could not be written; or members of a "
     "service end as soon as they begin, and nobody serves (service run)."),
    ("2", "The command line is wrong."),
    ("3", "There is no mpsd at the socket, or it ended, or it did not answer within 30 seconds."),
    ("130", "Interrupted, as by Ctrl-C."),
    ("141", "Whoever read the output has gone."),
)
ENVIRONMENT = (
    ("CUDA_MPS_PIPE_DIRECTORY", "Where mpsd.sock is; otherwise /tmp/nvidia-mps. The option --socket comes first."),
    ("NO_COLOR", "Where it is not empty, nothing is coloured. Without a terminal nothing is in any case."),
    ("COLUMNS", "How wide tables are. Otherwise as wide as the terminal; without one, nothing is cut."),
)
EXAMPLES = (
    ("mpsctl lease create training --user alice --sm 30% --memory 20G --ttl 2h",
     "Alice's next process gets 30 percent of the SMs and 20 GiB of each GPU, for two hours."),
    ("mpsctl lease create batch --new-token --sm 40 --gpu 0 --wait 10m --json",
     "40 SMs of GPU 0 for whoever has the token that is printed; waits up to ten minutes for them."),
    ("mpsctl why 4711", "Which rule gave process 4711 what it has."),
    ("mpsctl events 'fault.*' --json | jq .facts", "Every fault, as it happens."),
    ("mpsctl queue --json | jq 'length'", "How many wait."),
    ("mpsctl service run llm --standbys 1 --sm 30% --log-dir /var/log/llm -- python member.py",
     "A service with one standby, each member with 30 percent of the SMs."),
)  # fmt: skip


def render() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH MPSCTL 1 "" "mpsd {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "mpsctl \\- who has which part of a GPU, and why: leases, clients, fault domains of mpsd"
    yield ".SH SYNOPSIS"
    yield ".B mpsctl"
    yield "[\\fIOPTION\\fR]... \\fICOMMAND\\fR [\\fIARGUMENT\\fR]..."
    yield ".SH DESCRIPTION"
    yield _text(DESCRIPTION)
    yield from _options(EVERYWHERE)
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from _command(command)
    for title, pairs in (("QUANTITIES", QUANTITIES), ("EXIT STATUS", STATUSES), ("ENVIRONMENT", ENVIRONMENT)):
        yield f".SH {title}"
        for name, text in pairs:
            yield from _pair(f"\\fB{_text(name)}\\fR", text)
    yield ".SH EXAMPLES"
    for line, text in EXAMPLES:
        yield from (".PP", _text(text), ".PP", ".RS 4", ".nf", _text(line), ".fi", ".RE")
    yield ".SH SEE ALSO"
    yield "\\fBnvidia-cuda-mps-control\\fR(1); docs/mpsctl.md, docs/leases.md and docs/protocol.md of mpsd"


def _command(command: Command) -> Iterator[str]:
    """Yield the entry of a command: its usage line, its text and its arguments."""
    words = " ".join(["mpsctl", command.words, *map(_usage, command.arguments)])
    yield f".SS {_text(words)}" if len(words) < 70 else f".SS {_text(f'mpsctl {command.words}')} ..."
    yield _text(f"{command.help}.")
    if command.more:
        yield from (".PP", _text(command.more))
    yield from _options(command.arguments)


def _usage(each: Argument) -> str:
    if not each.is_option:
        return {"*": f"[{each.shown}...]", "?": f"[{each.shown}]", "+": f"{each.shown}..."}.get(each.count, each.shown)
    return f"[{' '.join(filter(None, (each.name, each.shown)))}]"


def _options(arguments: tuple[Argument, ...]) -> Iterator[str]:
    for each in arguments:
        name = f"\\fB{_text(each.name)}\\fR " if each.is_option else ""
        default = f" (default: {each.default})" if each.default is not None else ""
        choices = f" ({', '.join(each.choices)})" if each.choices and not each.is_option else ""
        again = "; may be given again and again" if each.is_option and each.count == "*" else ""
        shown = each.shown if not (each.choices and not each.is_option) else each.name.upper()
        yield from _pair(f"{name}\\fI{_text(shown)}\\fR" if shown else name.rstrip(), f"{each.help}{choices}{again}{default}")


def _pair(name: str, text: str) -> Iterator[str]:
    yield from (".TP", name, _text(text))


def _text(words: str) -> str:
    """Escape the text for troff; straight quotes stay straight, since people copy lines from manuals."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    sys.stdout.write(render())
