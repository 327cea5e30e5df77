"""The manual page, made from the table of commands: `python -m mpsctl.manual | man -l -` shows it, `make install` installs it.

The text is reproducible: it has a version, but no date.
"""

import sys
from collections.abc import Iterator

from mpsctl import __version__
from mpsctl.arguments import EVERYWHERE, Argument, Command
from mpsctl.table import COMMANDS

DESCRIPTION = (
    "Controls mpsd, the daemon behind nvidia-cuda-mps-control, on its socket mpsd.sock. Every user may call it; a user sees "
    "and changes their own clients, leases and arenas, an operator (root, the daemon's user, members of its admin group) all."
)
QUANTITIES = (
    ("SIZE", "A number and K, M, G or T, which are powers of 1024: 4G, 512M, 1.5G."),
    ("DURATION", "A number and ms, s, m, h or d; parts add up: 30s, 5m, 2h, 1h30m."),
    ("SHARE", "A share of the SMs of a GPU: a percentage, 30%, or a number, 40."),
    ("GPU", "An ordinal or a UUID, as mpsctl devices shows them."),
    ("USER", "A name or a number."),
)
STATUSES = (
    ("0", "Done."),
    ("1", "mpsd refused; or it has problems (health); or the answer could not be written; or the members of a "
     "service end right after their start, and no member serves (service run)."),
    ("2", "The command line is wrong."),
    ("3", "No mpsd listens at the socket, or it ended, or it did not answer within 30 seconds."),
    ("130", "Interrupted, as by Ctrl-C."),
    ("141", "The reader of the output has ended."),
)
ENVIRONMENT = (
    ("CUDA_MPS_PIPE_DIRECTORY", "Where mpsd.sock is; otherwise /tmp/nvidia-mps. The option --socket comes first."),
    ("NO_COLOR", "If it is not empty, output has no colours. Without a terminal it never has."),
    ("COLUMNS", "The width of tables; otherwise that of the terminal. Without a terminal tables are not cut."),
)
EXAMPLES = (
    ("mpsctl lease create training --user alice --sm 30% --memory 20G --ttl 2h",
     "Alice's next process gets 30 percent of the SMs and 20 GiB of each GPU, for two hours."),
    ("mpsctl lease create batch --new-token --sm 40 --gpu 0 --wait 10m --json",
     "40 SMs of GPU 0 for processes with the printed token; waits up to ten minutes for them."),
    ("mpsctl why 4711", "The rule that gave process 4711 its share and memory."),
    ("mpsctl events 'fault.*' --json | jq .facts", "Every fault, as it happens."),
    ("mpsctl queue --json | jq 'length'", "The number of entries that wait."),
    ("mpsctl service run llm --standbys 1 --sm 30% --log-dir /var/log/llm -- python member.py",
     "A service with one standby, each member with 30 percent of the SMs."),
)  # fmt: skip


def render() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH MPSCTL 1 "" "mpsd {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "mpsctl \\- show and change leases, clients, fault domains, arenas and services of mpsd"
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
