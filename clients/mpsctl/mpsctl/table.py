"""All commands with their arguments.  --help, completion, the manual page and docs/mpsctl.md are made from this or checked."""

import argparse
import functools
import pwd

from mpsctl.arguments import Argument, Command, build_parser
from mpsctl.commands import (
    arenas,
    clients,
    daemon,
    domains,
    environment,
    events,
    faults,
    images,
    leases,
    moving,
    services,
    stop,
)
from mpsctl.incident import CLASSES
from mpsctl.quantities import (
    Unfit,
    parse_duration,
    parse_id_or_name,
    parse_number_of,
    parse_percent,
    parse_share,
    parse_size,
    parse_whole,
)
from mpsctl.top import follow as top

GROUPS = {"lease": "make, renew, release or show one lease", "domain": "start, drain or recycle a fault domain",
          "limits": "limits of clients without a lease", "arena": "show, make, change or remove one arena",
          "image": "take an image of an arena, or restore one",
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
    Command("top", "Show clients, domains, leases, services, arenas, faults and GPUs on a screen, live", top, (
        Argument("--once", "print one table of clients, and end", is_flag=True),
    ), "The numbers 1 to 9 choose a view, `?` lists all keys. The screen changes as soon as mpsd publishes an event. If "
       "standard output is not a terminal, one table of clients is printed; with --json one object after each event. In the "
       "table, SM and MEM are the share and memory of the client's whole lease; HELD, next to each, is the part of this "
       "client. FAULTS counts those of its domain since the start of mpsd. End it with q or Ctrl-C."),
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
        Argument("--new-token", "the same, with a new token, which is printed", is_flag=True, instead="whom"),
        Argument("--sm", "share of the SMs of each GPU, 30%, or a number of SMs, 40; otherwise all", metavar="SHARE",
                 parse=parse_share),
        Argument("--memory", "memory of each GPU, or of one: 4G, 0=4G; otherwise no limit", metavar="[GPU=]SIZE",
                 parse=parse_memory, count="*"),
        _GPU,
        Argument("--processes", "how many may run under it; each gets an equal part", metavar="N", default=1,
                 parse=functools.partial(parse_number_of, 1, 1024)),
        Argument("--ttl", "how long it lasts; otherwise until it is released", metavar=_DURATION, parse=parse_duration),
        Argument("--wait", "how long it may be queued if it does not fit; otherwise it is refused", metavar=_DURATION,
                 parse=parse_duration),
        Argument("--domain", "the fault domain: the common one, a separate one, its group's, or that of quarantine",
                 choices=("shared", "own", "group", "quarantine")),
        Argument("--group", "leases of one group may share a domain, and inherit each other's shares"),
        Argument("--priority", _PRIORITY.help, _PRIORITY.metavar, _PRIORITY.parse, default=0),
        Argument("--level", "of the elastic policy", choices=("interactive", "batch"), default="interactive"),
        Argument("--owner", "the owner of the lease; for operators", metavar="USER", parse=parse_user),
    ), "Prints the lease, or the reason for the refusal. A lease that does not fit is refused, unless it may wait."),
    Command("lease renew", "Let a lease last longer, from now on", leases.renew, (
        _LEASE,
        Argument("--ttl", "how long; otherwise as long as it was made for", metavar=_DURATION, parse=parse_duration),
    )),
    Command("lease release", "Release a lease; its clients keep their share until they end", leases.release, (
        Argument("lease", "its id, or a name: then all your leases of that name", metavar="ID|NAME",
                 parse=parse_id_or_name),
        Argument("--owner", "with a name: release this user's leases; for operators", metavar="USER", parse=parse_user),
    ), "A word of digits alone is an id."),
    Command("lease show", "Show one lease, with its token if it is yours", leases.show, (_LEASE,)),
    Command("queue", "List the leases and clients that wait, with the reasons", leases.list_queue),
    Command("clients", "List the processes that use CUDA through mpsd", clients.list_clients, (),
            "MARKS: watched, mpsd sees the client's memory faults exactly; shield, its low addresses are shielded: a null "
            "access does nothing; held, its end waits until its work on the GPU has ended."),
    Command("why", "Show the rule that gave a client its share, or the reason for its waiting", clients.why, (_PID,)),
    Command("terminate", "End a client's work on the GPU; the process continues and gets CUDA error 810", clients.terminate, (
        _PID,
    )),
    stop.COMMAND,
    Command("move", "Choose the domain of the next process like this client", clients.move, (
        _PID, Argument("domain", "as `mpsctl domains` shows it"),
    )),
    Command("domains", "List fault domains", domains.list_domains),
    Command("domain create", "Start a fault domain", domains.create, (_GPU,)),
    Command("domain drain", "Close a domain to new clients, and remove it when it is empty", domains.drain, (_DOMAIN,)),
    Command("domain recycle", "Replace the servers of an empty domain by fresh ones", domains.recycle, (_DOMAIN,)),
    Command("devices", "List the GPUs of the daemon", domains.list_devices),
    Command("limits", "Show the limits of clients without a lease", daemon.show_limits),
    Command("limits set", "Set the limits of clients without a lease; limits that are not named stay", daemon.set_limits, (
        Argument("--sm", "share of the SMs: 30%", metavar="PERCENT", parse=parse_percent),
        Argument("--memory", "memory of each GPU, or of one: 4G, 0=4G; none: no limit", metavar="[GPU=]SIZE",
                 parse=parse_memory_or_none, count="*"),
        _PRIORITY,
    )),
    Command("faults", "List faults of the GPUs: culprit, how it is known, number of victims", faults.list_faults, (
        Argument("--last", "only the last N", metavar="N", parse=functools.partial(parse_number_of, 1, 10**6)),
        Argument("--after", "only those after the fault with this number", metavar="ID", parse=parse_whole),
        Argument("--since", "only those that began so long ago, or later", metavar=_DURATION, parse=parse_duration),
        Argument("--domain", "only those of this fault domain", metavar="NAME"),
        Argument("--class", "only those of this class", choices=tuple(CLASSES)),
        Argument("--culprit", "only those that this user's processes caused; another user's: for operators", metavar="USER",
                 parse=parse_user),
        Argument("--mine", "only those in which a process of yours is named", is_flag=True),
    ), "A user sees the names of their own processes, and only the number of others'. KNOWN is how the culprit is known: "
       "proven, alone (no other client was in the domain), left (all others were cleared), suspected, unknown."),
    Command("fault", "Show one fault: culprit, place, the evidence in order of time, victims", faults.show_fault, (
        Argument("number", "of the fault, as `mpsctl faults` shows it", parse=parse_whole),
        Argument("--html", "write an HTML page of one file instead, with a picture", metavar="FILE"),
    )),
    Command("blame", "List quarantined, suspected and paused clients, and drained GPUs", faults.list_blame),
    Command("pardon", "End the quarantine and the suspicion of a client, or the drain of a GPU", faults.pardon, (
        Argument("key", "as `mpsctl blame` shows it"),
    ), "For a program whose bug was fixed: from its next start on it is placed and admitted like any other. For a drained "
       "GPU, by its UUID: it takes clients again."),
    *arenas.COMMANDS,
    *images.COMMANDS,
    *services.COMMANDS,
    *moving.COMMANDS,
    Command("events", "Print events as they occur", events.follow, (
        Argument("topics", "a topic, or a family: lease.*, client.*, domain.*, fault.*, gpu.*, blame.*, "
                 "arena.*, service.*; otherwise all",
                 metavar="TOPIC", count="*"),
        Argument("--count", "end after N events", metavar="N", parse=functools.partial(parse_number_of, 1, 10**9)),
    ), "A line `events.lost` marks events that this reader missed because it was too slow. End it with Ctrl-C."),
    Command("status", "Show version, uptime and totals of mpsd", daemon.status),
    Command("health", "Show whether a client that comes now would be served; exit status 1 if not", daemon.health),
    environment.COMMAND,
    Command("completion", "Print completion for a shell", daemon.completion, (
        Argument("shell", "which", choices=("bash", "zsh", "tcsh")),
    ), "For bash: mpsctl completion bash > /usr/share/bash-completion/completions/mpsctl"),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    return build_parser(COMMANDS, GROUPS)
