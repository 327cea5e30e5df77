"""The commands services, service show, service handover, service change, and service run."""

import argparse
import functools
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpsd_client import Refused, calls, values

from mpsctl import words
from mpsctl.__main__ import USAGE
from mpsctl.arguments import Argument, Command
from mpsctl.commands.environment import directory
from mpsctl.output import Column, facts, visible
from mpsctl.quantities import (
    Unfit,
    parse_duration,
    parse_number_of,
    parse_percent,
    parse_size,
    show_duration,
    show_percent,
    show_size,
)
from mpsctl.session import Session
from mpsctl.starter import reports

if TYPE_CHECKING:
    from rich.console import RenderableType

NONE = "none"
MOST_STANDBYS = 8
_MARGIN_SECONDS = 30.0  # time for the answer beyond the requested wait
_NAME = re.compile(r"(?:[0-9]{1,10}:)?[A-Za-z0-9._-]{1,128}")
_WAITS_SECONDS = 30.0


def parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Unfit("letters, digits, dots, underscores and hyphens")
    return text


def parse_percent_or_none(text: str) -> float:
    """Parse a percentage; 0 for none."""
    return 0.0 if text == NONE else parse_percent(text)


def parse_size_or_none(text: str) -> int:
    return 0 if text == NONE else parse_size(text)


def parse_heartbeat(text: str) -> float:
    return 0.0 if text == NONE else parse_duration(text)


# -- looking -------------------------------------------------------------------------------------------------------------


def list_services(session: Session) -> int:
    found = session.all(calls.service_list(limit=1000))
    session.out.document(found, lambda: session.out.table(_columns(session), found, "no services"))
    return 0


def _columns(session: Session) -> Sequence[Column[values.Service]]:
    return (
        Column("NAME", lambda each: each.name, may_be_cut=True, least=8),
        Column("PHASE", lambda each: each.phase),
        Column("ACTIVE", lambda each: each.writer_pid, is_number=True),
        Column("DOMAIN", lambda each: domain(each), may_be_cut=True, least=6),
        Column("READY", lambda each: f"{ready(each)}/{each.settings.standbys}", is_number=True),
        Column("GEN", lambda each: each.generation, is_number=True),
        Column("LAST", lambda each: _ago(session, each.last.at) if each.last else None, is_number=True),
        Column("CAUSE", lambda each: each.last.cause if each.last else None),
        Column("TOOK", lambda each: _took(each.last), is_number=True),
        Column("PROTECTED", protection, may_be_cut=True, least=9),
    )


def domain(of: values.Service) -> str | None:
    """Return the fault domain of the active; None without one."""
    return next((each.domain for each in of.members if each.is_writer), None)


def ready(of: values.Service) -> int:
    """Return the number of standbys that could take over now."""
    return sum(each.standing == "ready" and not each.is_writer for each in of.members)


def protection(of: values.Service) -> str:
    return of.protection or ("yes" if of.writer_pid is not None else "no member serves")


def _ago(session: Session, moment: float) -> str:
    return show_duration(max(0.0, session.out.surroundings.now() - moment))


def _took(of: values.Promotion | None) -> str | None:
    """Return the time from the cause of a promotion until the new active served, as the sum of the known parts."""
    known = [each for each in (of.detect_ms, of.fence_ms, of.promote_ms) if each is not None] if of else []
    return reports.milliseconds(sum(known)) if known else None


def show(session: Session) -> int:
    found = session.ask(calls.service_get(session.asked.name))
    session.out.document(found, lambda: _report(session, found))
    return 0


def _report(session: Session, found: values.Service) -> "RenderableType":
    from rich.console import Group

    return Group(facts(_facts(session, found)), "", session.out.table(_member_columns(session), found.members, "no members"))


def _facts(session: Session, found: values.Service) -> Mapping[str, object]:
    names = words.ordinals(session.all(calls.device_list()))
    writer = f"pid {found.writer_pid}" if found.writer_pid is not None else "none"
    settings, last = found.settings, found.last
    return {
        "service": found.name,
        "owner": session.user_name(found.owner_uid),
        "GPU": words.gpus((found.gpu,), names),
        "phase": found.phase,
        "active": f"{writer}, generation {found.generation}",
        "standbys": f"{ready(found)} ready of {settings.standbys} wanted",
        "each with": reports.reservation(settings.sm_percent, settings.memory_bytes) or "nothing reserved",
        **({} if found.share is None else _share(session, found.share)),
        "heartbeat": f"{settings.heartbeat_seconds:g} s" if settings.heartbeat_seconds else "none",
        "protected": protection(found),
        **({} if found.replica is None else {"replica": _replica(session, found.replica, names)}),
        **({} if found.move is None else {"move": _move(found.move, names)}),
        "promotions": f"{found.promotions} since mpsd began",
        **({} if last is None else _last(session, last)),
        **({} if found.lost is None else _lost(session, found.lost, found.losses)),
    }


def _share(session: Session, share: values.ServiceShare) -> Mapping[str, object]:
    used = "not known" if share.busy is None else f"{share.busy:.0%} of the time"
    when = f"{_ago(session, share.moved_at)} ago, move {share.moves}" if share.moved_at else "not since mpsd began"
    return {
        "elastic share": f"{show_percent(share.sm_percent)}, {share.level}; busy {used}; moved {when}",
        "decision": share.why or "none yet",
    }


def _lost(session: Session, lost: values.Loss, losses: int) -> Mapping[str, object]:
    times = "once" if losses == 1 else f"{losses} times"
    return {
        "STATE LOST": f"{times} since mpsd began; {_ago(session, lost.at)} ago pid {lost.pid} began anew, "
        f"generation {lost.generation}",
        "because": lost.why,
    }


def _replica(session: Session, of: values.Replica, names: Mapping[str, str]) -> str:
    """Return where the replica is, and how far behind."""
    lacks = "an unknown number of publishes" if of.steps is None else f"{of.steps} publishes"
    age = "it has no image yet" if of.at is None else f"{_ago(session, of.at)} old, lacks {lacks}"
    copying = f", {show_size(of.behind_bytes)} to copy" if of.behind_bytes else ""
    late = f"; TOO FAR BEHIND, the bound is {of.bound_seconds:g} s" if of.is_behind else ""
    return f"pid {of.pid} on GPU {words.gpus((of.gpu,), names)}: {age}{copying}{late}"


def _move(of: values.Move, names: Mapping[str, str]) -> str:
    """Return where the service moves to, or moved last, and how far that is."""
    ways = f"{of.state}: from GPU {words.gpus((of.from_gpu,), names)} to GPU {words.gpus((of.to_gpu,), names)}"
    pause = "" if of.pause_ms is None else f", pause {reports.milliseconds(of.pause_ms)}"
    return f"{ways}, {of.rounds} images copied in {of.seconds:.1f} s{pause}{f'; {of.why}' if of.why else ''}"


def _last(session: Session, last: values.Promotion) -> Mapping[str, object]:
    before = f"pid {last.from_pid}" if last.from_pid is not None else "none"
    return {
        "last": f"{_ago(session, last.at)} ago, {last.cause}: from {before} to pid {last.to_pid}, generation {last.generation}",
        "detected in": _part(last.detect_ms),
        "fenced in": _part(last.fence_ms),
        "promoted in": _part(last.promote_ms),
    }


def _part(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else reports.milliseconds(milliseconds)


def _member_columns(session: Session) -> Sequence[Column[values.Member]]:
    return (
        Column("PID", lambda each: each.pid, is_number=True),
        Column("DOMAIN", lambda each: each.domain, may_be_cut=True, least=6),
        Column("STANDING", lambda each: each.standing),
        Column("ROLE", lambda each: "active" if each.is_writer else "standby"),
        Column("RANK", lambda each: each.rank, is_number=True),
        Column("APART", lambda each: "yes" if each.is_apart else "no"),
        Column("FOR", lambda each: _ago(session, each.since_at), is_number=True),
    )


# -- changing ------------------------------------------------------------------------------------------------------------


def hand_over(session: Session) -> int:
    asked = session.asked
    wait = _WAITS_SECONDS if asked.wait is None else asked.wait
    session.mpsd.timeout_seconds = wait + _MARGIN_SECONDS
    done = session.ask(calls.service_handover(asked.name, asked.to, wait_seconds=wait))
    said = f"pid {done.to_pid} serves in place of pid {done.from_pid}, after {reports.milliseconds(done.seconds * 1000)}"
    session.out.document(done, lambda: said)
    return 0


def change(session: Session) -> int:
    asked = session.asked
    session.needs_one_of("standbys", "sm", "memory", "heartbeat", "elastic")
    changed = session.ask(
        calls.service_change(
            asked.name, standbys=asked.standbys, sm_percent=asked.sm, memory_bytes=asked.memory,
            heartbeat_seconds=asked.heartbeat, elastic=asked.elastic,
        )
    )  # fmt: skip
    session.out.document(changed, lambda: _sentence(changed))
    return 0


def _sentence(found: values.Service) -> str:
    settings = found.settings
    with_ = reports.reservation(settings.sm_percent, settings.memory_bytes)
    each = f"each with {with_}" if with_ else "nothing reserved"
    heartbeat = f"{settings.heartbeat_seconds:g} s" if settings.heartbeat_seconds else "none"
    standbys = "1 standby" if settings.standbys == 1 else f"{settings.standbys} standbys"
    return f"service {found.name}: {standbys} in addition to the active, {each}; heartbeat {heartbeat}"


def run(session: Session) -> int:
    """Run a starter until a signal ends it or its work is done.  Return the exit status."""
    from mpsctl.starter.children import Place
    from mpsctl.starter.ending import Manner
    from mpsctl.starter.runner import Starter
    from mpsctl.starter.settings import Given, Task

    asked, out = session.asked, session.out
    gpus = [gpu for given in asked.gpu or () for gpu in given.split(",")]
    devices = session.all(calls.device_list())  # this needs mpsd, so that without one no member is started
    trouble = _trouble(asked) or _trouble_with_gpus(session, gpus, devices) or _trouble_with_replica(asked, gpus, devices)
    if trouble:
        print(f"mpsctl service run: {visible(trouble)}", file=out.surroundings.stderr)
        return USAGE
    manner = Manner() if asked.drain is None else Manner(drain_seconds=asked.drain)
    terminal = (sys.stderr if out.is_json else sys.stdout).fileno()
    environ = {**out.surroundings.environ, "CUDA_MPS_PIPE_DIRECTORY": directory(session)}  # members use the same mpsd
    environ.pop("MPSD_PIPE_DIRECTORY", None)
    place = Place(asked.name, asked.command_words, environ, asked.log_dir, terminal)
    given = Given(asked.standbys, asked.sm, asked.memory, elastic=asked.elastic)
    if replica := asked.replica_gpu or "":  # members see one GPU each, by its UUID: an ordinal means another GPU elsewhere
        (gpus, [replica]) = _uuids(gpus, devices), _uuids([replica], devices)
    task = Task(given, gpus, manner, asked.until_done, asked.remove_arena, replica)
    return Starter(session, place, task).run()


def _trouble_with_gpus(session: Session, gpus: Sequence[str], devices: Sequence[values.Device]) -> str:
    """Return what is wrong with the GPUs of the members; empty if nothing."""
    asked = session.asked
    for gpu in gpus:
        if not _uuids([gpu], devices):
            return _no_such("--gpu", gpu, devices)
    if gpus or len(devices) == 1 or (asked.sm is None and asked.memory is None):
        return ""
    try:
        session.ask(calls.service_get(asked.name))
    except Refused:
        return "this machine has several GPUs, and the service does not exist yet: name the GPU by --gpu"
    return ""


def _trouble_with_replica(asked: argparse.Namespace, gpus: Sequence[str], devices: Sequence[values.Device]) -> str:
    if asked.replica_gpu is None:
        return ""
    meant = _uuids([asked.replica_gpu], devices)
    if not meant:
        return _no_such("--replica-gpu", asked.replica_gpu, devices)
    home = _uuids(gpus, devices)
    if len(home) != 1 or len(meant) != 1:
        return "--replica-gpu needs --gpu too, and one GPU in each: where the service begins, and where its replica is"
    if home == meant:
        return f"--replica-gpu {asked.replica_gpu} is the GPU of the service: a replica has to be on another one"
    return ""


def _no_such(option: str, gpu: str, devices: Sequence[values.Device]) -> str:
    there = ", ".join(f"{device.ordinal} ({device.uuid})" for device in devices)
    return f"{option} {gpu}: mpsd has no such GPU; it has {there}"


def _uuids(gpus: Sequence[str], devices: Sequence[values.Device]) -> list[str]:
    """Return the UUIDs of the GPUs that these texts may mean."""
    return [device.uuid for device in devices if any(_may_be_meant(gpu, device) for gpu in gpus)]


def _may_be_meant(gpu: str, device: values.Device) -> bool:
    """Return whether the text names this GPU, by its ordinal or by the beginning of its UUID."""
    if gpu.isascii() and gpu.isdecimal():
        return gpu.lstrip("0") == str(device.ordinal).lstrip("0")
    return bool(gpu) and device.uuid.lower().startswith(gpu.lower())


def _trouble(asked: argparse.Namespace) -> str:
    program, log_dir = asked.command_words[0], asked.log_dir
    if asked.remove_arena and not asked.until_done:
        return "--remove-arena is for --until-done"
    if shutil.which(program) is None:
        return f"program {program} does not exist"
    if log_dir is not None:
        try:
            os.makedirs(log_dir, mode=0o700, exist_ok=True)
        except OSError as exc:
            return f"{log_dir} cannot be made: {exc.strerror}"
        if not os.access(log_dir, os.W_OK | os.X_OK):
            return f"{log_dir} cannot be written to"
    return ""


_SERVICE = Argument("name", "of the service, as `mpsctl services` shows it", parse=parse_name)
_STANDBYS = Argument("--standbys", "the number of standbys, in addition to the active", metavar="N",
                     parse=functools.partial(parse_number_of, 0, MOST_STANDBYS))  # fmt: skip
_ELASTIC = Argument("--elastic", "let the share move by need among your elastic services on the GPU",
                    choices=("interactive", "batch", "off"))  # fmt: skip
_SM_HELP = "the share of the SMs that each member has: 30%"
_MEMORY_HELP = "the memory that each member has: 4G"

COMMANDS = (
    Command("services", "List services: arenas with a process that serves them, and standbys", list_services, (),
            "READY has the standbys that could take over now, and the wanted number. LAST, CAUSE and TOOK describe the last "
            "promotion: its age, its cause, and the time from the cause until the new active served."),
    Command("service show", "Show one service with its members and its last promotion", show, (_SERVICE,)),
    Command("service handover", "Let a standby serve in place of the active, which stays as a standby", hand_over, (
        _SERVICE,
        Argument("--to", "to this member; otherwise to the next one", metavar="PID",
                 parse=functools.partial(parse_number_of, 1, 2**31 - 1)),
        Argument("--wait", "how long it may take; otherwise 30s", metavar="DURATION", parse=parse_duration),
    )),
    Command("service change", "Change the number of standbys, and the share and memory of each member", change, (
        _SERVICE,
        _STANDBYS,
        Argument("--sm", f"{_SM_HELP}; {NONE}: nothing is reserved", metavar="PERCENT", parse=parse_percent_or_none),
        Argument("--memory", f"{_MEMORY_HELP}; {NONE}: no limit", metavar="SIZE", parse=parse_size_or_none),
        Argument("--heartbeat", f"after so long without a change of its forward state an active counts as hung; {NONE}: never",
                 metavar="DURATION", parse=parse_heartbeat),
        _ELASTIC,
    ), "Settings that are not named stay. The starter (service run) carries the change out. For another share or other memory "
       "it replaces the members one after the other; a new one takes over before the old one is ended."),
    Command("service run", "Keep the members of a service running: the active and its standbys", run, (
        Argument("name", "name of the service and of its arena", parse=parse_name),
        _STANDBYS,
        Argument("--sm", _SM_HELP, metavar="PERCENT", parse=parse_percent),
        Argument("--memory", _MEMORY_HELP, metavar="SIZE", parse=parse_size),
        _ELASTIC,
        Argument("--gpu", "where shares and memory are reserved; otherwise on the service's GPU, or the only one",
                 metavar="GPU[,GPU...]", count="*"),
        Argument("--replica-gpu", "keep a replica on this GPU too, which serves when that of --gpu is lost; each member then "
                 "sees one GPU", metavar="GPU"),
        Argument("--log-dir", "where NAME-N.log has the output of member N; otherwise it is printed, with a prefix",
                 metavar="DIR"),
        Argument("--drain", "how long a member's queued GPU work may run before the member is ended; otherwise 1s",
                 metavar="DURATION", parse=parse_duration),
        Argument("--until-done", "end all members when the active has ended with status 0", is_flag=True),
        Argument("--remove-arena", "and then remove the arena, with its memory and its forward state", is_flag=True),
        Argument("command_words", "the command of each member, which gets MPSD_SERVICE=NAME in its environment",
                 metavar="COMMAND", count="+"),
    ), "Write -- before COMMAND. Settings that are not named are the service's, or 1 standby and no reservation. SIGTERM and "
       "SIGINT end the members through mpsd, the active last; a second signal kills them. SIGHUP restarts all members, one "
       "after the other. If mpsctl is killed they continue, and another `service run` of the same name counts them."),
)  # fmt: skip
