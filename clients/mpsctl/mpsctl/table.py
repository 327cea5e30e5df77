"""All commands with their arguments.  --help, completion, the manual page and docs/mpsctl.md are made from this or checked."""

import argparse
import functools
import pwd

from mpsctl.arguments import Argument, Command, build_parser
from mpsctl.commands import arenas, clients, daemon, domains, environment, events, faults, leases, services, stop
from mpsctl.incident import CLASSES
from mpsctl.quantities import (
    Unfit,
    parse_duration,
    parse_number_of,
    parse_percent,
    parse_share,
    parse_size,
    parse_whole,
)
from mpsctl.top import follow as top

GROUPS = {"lease": "make, renew, give back or show one lease", "domain": "begin, empty or refresh a fault domain",
          "limits": "what clients without a lease get", "arena": "show, make, change or remove one arena",
          "service": "run, show, change or hand over one service"}  # fmt: skip


def parse_user(text: str) -> int:
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        pass
    if not (text.isascii() and text.isdecimal() and int(text[:11]) < 2**32 - 1):
        raise Unfit("the name or the number of a user")
    return int(text)


def parse_memory(text: str) -> tuple[str, int]:
    """Return the GPU ("" for all GPUs) and the bytes."""
    gpu, _, size = text.rpartition("=")
    try:
        return gpu, parse_size(size)
    except Unfit as exc:
        raise Unfit(f"{exc}; for one GPU: 0=4G") from None


def parse_memory_or_none(text: str) -> tuple[str, int]:
    gpu, _, size = text.rpartition("=")
    return (gpu, 0) if size == "none" else parse_memory(text)


_PID = Argument("pid", "process id, in mpsd's pid namespace", parse=functools.partial(parse_number_of, 1, 2**31 - 1))
_LEASE = Argument("id", "of the lease, as `mpsctl leases` shows it", parse=parse_whole)
_DOMAIN = Argument("name", "of the domain, as `mpsctl domains` shows it")
_GPU = Argument("--gpu", "ordinals or UUIDs, joined by commas; otherwise every GPU", metavar="GPU[,GPU...]", count="*")
_PRIORITY = Argument(
    "--priority", "0: normal, 1: below normal", metavar="{0,1}", parse=functools.partial(parse_number_of, 0, 1)
)
_DURATION = "DURATION"

COMMANDS: tuple[Command, ...] = (
    Command("top", "Who is there, live: a table that is drawn anew each second and after events", top, (
        Argument("--once", "print one table, and end", is_flag=True),
    ), "SM and MEM are what the client's lease has asked for as a whole; HELD, beside each, is what this client was granted. "
       "FAULTS are those of its domain since mpsd was started; `mpsctl faults` says who did them. Where standard output is no "
       "terminal, one table is printed. End it with Ctrl-C."),
    Command("leases", "List leases", leases.list_leases, (
        Argument("--state", "only those in this state", choices=("active", "queued")),
    )),
    Command("lease create", "Make a lease", leases.create, (
        Argument("name", "for people"),
        Argument("--pid", "for one process", parse=_PID.parse, instead="whom"),
        Argument("--user", "for the processes of a user", parse=parse_user, instead="whom"),
        Argument("--cgroup", "for a cgroup and all below it: a path, or the name of a container, job or unit", metavar="PATH",
                 instead="whom"),
        Argument("--token", "for processes with MPSD_LEASE=TOKEN in their environment", instead="whom"),
        Argument("--new-token", "... with a token that is made now, and printed", is_flag=True, instead="whom"),
        Argument("--sm", "share of the SMs of each GPU: 30%, or so many SMs: 40; otherwise all", metavar="SHARE",
                 parse=parse_share),
        Argument("--memory", "memory of each GPU, or of one: 4G, 0=4G; otherwise no limit", metavar="[GPU=]SIZE",
                 parse=parse_memory, count="*"),
        _GPU,
        Argument("--processes", "how many may run under it; each gets an equal part", metavar="N", default=1,
                 parse=functools.partial(parse_number_of, 1, 1024)),
        Argument("--ttl", "how long it lasts; otherwise until it is released", metavar=_DURATION, parse=parse_duration),
        Argument("--wait", "how long it may be queued where it does not fit; otherwise it is refused", metavar=_DURATION,
                 parse=parse_duration),
        Argument("--domain", "which fault domain: everybody's, its own, its group's, or that of suspects",
                 choices=("shared", "own", "group", "quarantine")),
        Argument("--group", "leases of one group may share a domain, and inherit each other's shares"),
        Argument("--priority", _PRIORITY.help, _PRIORITY.metavar, _PRIORITY.parse, default=0),
        Argument("--level", "of the elastic policy", choices=("interactive", "batch"), default="interactive"),
        Argument("--owner", "whose lease it is: operators may say", metavar="USER", parse=parse_user),
    ), "Prints the lease, or why there is none. A lease that does not fit is refused, unless it may wait."),
    Command("lease renew", "Let a lease last longer, from now on", leases.renew, (
        _LEASE,
        Argument("--ttl", "how long; otherwise as long as it was made for", metavar=_DURATION, parse=parse_duration),
    )),
    Command("lease release", "Give a lease back; its clients keep what they have until they end", leases.release, (_LEASE,)),
    Command("lease show", "Everything about one lease, its token too where it is yours", leases.show, (_LEASE,)),
    Command("queue", "Who waits, in which order, and for what", leases.list_queue),
    Command("clients", "List the processes that use CUDA through mpsd", clients.list_clients, (),
            "MARKS: watched, the client's memory faults are seen exactly; shield, low addresses are shielded in it, and a null "
            "access does nothing; held, its end waits until its work on the GPU has ended."),
    Command("why", "Which rule gave a client what; while it waits, for what", clients.why, (_PID,)),
    Command("terminate", "End a client's work on the GPU; the process goes on and sees CUDA error 810", clients.terminate, (
        _PID,
    )),
    stop.COMMAND,
    Command("move", "Choose the domain of the next process like this client", clients.move, (
        _PID, Argument("domain", "as `mpsctl domains` shows it"),
    )),
    Command("domains", "List fault domains", domains.list_domains),
    Command("domain create", "Begin a fault domain", domains.create, (_GPU,)),
    Command("domain drain", "Let a domain take nobody, and go when it is empty", domains.drain, (_DOMAIN,)),
    Command("domain recycle", "Replace the servers of an empty domain by fresh ones", domains.recycle, (_DOMAIN,)),
    Command("devices", "List the GPUs of the daemon", domains.list_devices),
    Command("limits", "What clients without a lease get", daemon.show_limits),
    Command("limits set", "Set what clients without a lease get; what is not named stays", daemon.set_limits, (
        Argument("--sm", "share of the SMs: 30%", metavar="PERCENT", parse=parse_percent),
        Argument("--memory", "memory of each GPU, or of one: 4G, 0=4G; none: no limit", metavar="[GPU=]SIZE",
                 parse=parse_memory_or_none, count="*"),
        _PRIORITY,
    )),
    Command("faults", "Faults of the GPUs: who did it, how that is known, how many were hurt", faults.list_faults, (
        Argument("--last", "only so many, the last ones", metavar="N", parse=functools.partial(parse_number_of, 1, 10**6)),
        Argument("--after", "only those behind the fault of this number", metavar="ID", parse=parse_whole),
        Argument("--since", "only those that began so long ago, or later", metavar=_DURATION, parse=parse_duration),
        Argument("--domain", "only those of this fault domain", metavar="NAME"),
        Argument("--class", "only those of this class", choices=tuple(CLASSES)),
        Argument("--culprit", "only those that this user's processes did; another user's: operators", metavar="USER",
                 parse=parse_user),
        Argument("--mine", "only those in which a process of yours is named", is_flag=True),
    ), "A user is told of their own processes by name, and of others' that they are there. KNOWN is how it is known who did "
       "it: proven, alone (nobody else was there), left (everybody else was cleared), suspected, unknown."),
    Command("fault", "Everything about one fault: who, where, the evidence in time, who was hurt", faults.show_fault, (
        Argument("number", "of the fault, as `mpsctl faults` shows it", parse=parse_whole),
        Argument("--html", "write it as a page of one file instead, with a picture", metavar="FILE"),
    )),
    Command("blame", "What is held against whom: convictions, suspicions, pauses; GPUs that are drained", faults.list_blame),
    Command("pardon", "Hold nothing against somebody any more", faults.pardon, (
        Argument("key", "as `mpsctl blame` shows it"),
    ), "For a program that was mended: it is placed and admitted as everybody is, from its next start on. For a GPU that is "
       "drained, by its UUID: it takes clients again."),
    *arenas.COMMANDS,
    *services.COMMANDS,
    Command("events", "What happens, as it happens", events.follow, (
        Argument("topics", "a topic, or a family: lease.*, client.*, domain.*, fault.*, gpu.*, blame.*, "
                 "arena.*, service.*; otherwise all",
                 metavar="TOPIC", count="*"),
        Argument("--count", "end after so many", metavar="N", parse=functools.partial(parse_number_of, 1, 10**9)),
    ), "A line `events.lost` stands where this reader was too slow. End it with Ctrl-C."),
    Command("status", "What mpsd is, and how much there is of everything", daemon.status),
    Command("health", "Whether a client that comes would be served; exit status 1 where not", daemon.health),
    environment.COMMAND,
    Command("completion", "Print completion for a shell", daemon.completion, (
        Argument("shell", "which", choices=("bash", "zsh", "tcsh")),
    ), "For bash: mpsctl completion bash > /usr/share/bash-completion/completions/mpsctl"),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    return build_parser(COMMANDS, GROUPS)
