"""Describe a fault in sentences: the culprit, the access, the proof, the victims, and what to do now.  Pure.

Clients that mpsd does not reveal to this user appear only as a client of another user.  This module escapes names that users
choose (output.py), so that every sentence may be printed as it is.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd_client import values

from mpsctl.output import visible

SHIELD_BYTES = 64 << 10  # the shield cannot cover addresses below this one
NULL_BYTES = 2 << 20  # an access below this address is a null pointer plus an offset
CLASSES = {  # docs/faults.md, "Classes"
    "mmu": "an access that no mapping allows",
    "sm": "an exception of an SM",
    "host": "a process that ended while its work ran",
    "device": "the GPU itself",
    "unknown": "not known",
}
_VERBS = {"read": "read from", "write": "wrote to", "atomic": "did an atomic access to", "prefetch": "prefetched from"}
_OF_THEMSELVES = ("report", "process", "core_dump")  # sources that observe the process that they name
_SOMEBODY_ELSE = "a client of another user"


@dataclass(frozen=True, slots=True)
class Names:
    """user: returns the name of a uid.  gpus: ordinals by UUID."""

    user: Callable[[int], str]
    gpus: Mapping[str, str]


def short(party: values.Party | None) -> str | None:
    """Return the program and pid of a party as one word."""
    if party is None:
        return None
    if party.pid is None:
        return "another user's"
    return f"{visible(party.program)}[{party.pid}]" if party.program else f"pid {party.pid}"


def in_a_cell(of: values.Incident, names: Names) -> str | None:
    """Return the culprit or the suspects, for a table cell."""
    party = of.culprit
    if party is None and of.confidence == "suspected":
        return f"one of {of.suspected}" if of.culprit_key is None else f"{visible(of.culprit_key)}, one of {of.suspected}"
    if party is None or party.pid is None:
        return short(party)
    user = names.user(party.uid) if party.uid is not None else ""
    lease = f"lease {party.lease_id}" if party.lease_id is not None else ""
    return " ".join(filter(None, (short(party), user, visible(party.container), lease)))


def who(party: values.Party, names: Names) -> str:
    """Return a party in full: program, pid, user, container, lease."""
    if party.pid is None:
        return _SOMEBODY_ELSE
    user = f" of user {visible(names.user(party.uid))}" if party.uid is not None else ""
    container = f" in container {visible(party.container)}" if party.container else ""
    lease = f" under lease {party.lease_id}" if party.lease_id is not None else ""
    return f"{short(party)}{user}{container}{lease}"


def gpu(of: values.Incident, names: Names) -> str | None:
    """Return the GPU by ordinal and UUID."""
    if of.gpu is None:
        return None
    return f"{names.gpus[of.gpu]} ({of.gpu})" if of.gpu in names.gpus else of.gpu


def headline(of: values.IncidentReport, names: Names) -> str:
    return f"{_subject(of, names)} {_deed(of)}{_kernel(of)}; {known_by(of)}."


def _subject(of: values.IncidentReport, names: Names) -> str:
    if of.culprit is not None:
        return who(of.culprit, names) if of.culprit.pid is not None else "A client of another user"
    if of.confidence == "suspected":
        return f"One of {of.suspected} {_suspects(of)}"
    if of.fault_class == "device":
        return f"GPU {names.gpus.get(of.gpu, of.gpu)}" if of.gpu is not None else "A GPU"
    return f"A client in domain {of.domain}" if of.domain is not None else "A client"


def _suspects(of: values.Incident) -> str:
    return "suspects" if of.culprit_key is None else f"clients with the key {visible(of.culprit_key)}"


def hurt_in_a_cell(of: values.Incident) -> int | None:
    """Return the number of victims; None if mpsd does not know the clients of the domain, or does not know yet that the domain
    has faulted."""
    return None if not of.hurt and of.confidence == "unknown" and of.fault_class != "device" else of.hurt


def _deed(of: values.Incident) -> str:
    if of.fault_class == "mmu":
        return access(of) or "made an access that no mapping allows"
    if of.fault_class == "sm":
        return "raised an exception of an SM"
    if of.fault_class == "host":
        return "ended while its work ran on the GPU"
    return "failed" if of.fault_class == "device" else "caused a fault of an unknown kind"


def access(of: values.Incident | values.Evidence) -> str | None:
    """Return the kind of access and its address as text."""
    if of.address is None:
        return None
    return f"{_VERBS.get(of.access, 'accessed')} {of.address:#x} ({place(of.address)})"


def place(address: int) -> str:
    return f"null and {address} bytes" if address < NULL_BYTES else "no mapping"


def _kernel(of: values.Incident | values.Evidence) -> str:
    name = f" in kernel `{visible(of.kernel)}`" if of.kernel else ""
    return name + (f" at PC {of.pc:#x}" if of.pc is not None else "")


def known_by(of: values.IncidentReport) -> str:
    """Return how the culprit is known, or why no client is accused."""
    if of.confidence == "proven":
        return _proof(of)
    if of.confidence == "suspected" and of.culprit_key is not None:
        return "it is not known which of them, so the key that all of them have counts as the culprit"
    return {
        "alone": "no other client was in the domain",
        "likely": "likely, not proven: it alone failed when the exception was contained",
        "left": "all other clients in the domain were cleared",
        "suspected": "mpsd accuses no client until one of them faults alone",
    }.get(of.confidence, "mpsd accuses no client")


def _proof(of: values.IncidentReport) -> str:
    proofs = [each for each in of.evidence if each.is_proof]
    if not proofs:
        return "proven"
    first = min(proofs, key=lambda each: each.after_seconds)
    when = f"{milliseconds(first.after_seconds)} after the first sign" if first.after_seconds > 0 else "at the first sign"
    return f"proven by {first.source} {when}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def after(seconds: float) -> str:
    """Return a time relative to the first sign of the fault, with its sign."""
    return f"{'-' if seconds < 0 else '+'}{milliseconds(abs(seconds))}"


def xid(of: values.Xid) -> str:
    return f"{of.name}: {of.meaning}"


def seen(of: values.Evidence) -> str:
    """Return an observation of a source as one line."""
    what = [
        _whom(of),
        visible(of.text),
        f"Xid {of.xid}" if of.xid is not None and f"Xid {of.xid}" not in of.text else "",
        access(of) or "",
        _kernel(of).strip(),
    ]
    return "; ".join(filter(None, what)) or CLASSES.get(of.fault_class, of.fault_class)


def _whom(of: values.Evidence) -> str:
    """Return which process the observation names.  An Xid or a log often names an innocent process, which proves nothing."""
    name = short(of.process)
    if name is None:
        return ""
    if of.is_proof:
        return f"proof: {name}"
    if of.clears:
        return f"clears {name}"
    return name if of.source in _OF_THEMSELVES else f"names {name}, which proves nothing"


def done(of: values.Deed) -> str:
    return visible(of.text) or "(only operators see this)"


def pairs(of: values.IncidentReport, names: Names) -> Mapping[str, str | None]:
    """Return the known facts of a fault by name; None or empty: unknown."""
    began = time.localtime(of.began_at)
    clock = time.strftime("%Y-%m-%d %H:%M:%S", began) + f".{int(of.began_at * 1000) % 1000:03}" + time.strftime(" %z", began)
    return {
        "when": f"{clock}; {'settled' if of.is_settled else 'more may come'}",
        "class": f"{of.fault_class}: {CLASSES.get(of.fault_class, '')}",
        "GPU": gpu(of, names),
        "domain": of.domain,
        "culprit": _culprit(of, names),
        "suspects": ", ".join(who(party, names) for party in of.suspects),
        "known": known_by(of) if of.confidence == "proven" else f"{of.confidence}: {known_by(of)}",
        "access": access(of),
        "kernel": visible(of.kernel),
        "PC": None if of.pc is None else f"{of.pc:#x}",
        **{f"Xid {each.number}": xid(each) for each in of.xids},
    }


def _culprit(of: values.IncidentReport, names: Names) -> str | None:
    if of.culprit is not None:
        return who(of.culprit, names)
    return None if of.culprit_key is None else f"one of {of.suspected} {_suspects(of)}"


def hurt(of: values.IncidentReport, names: Names) -> Sequence[str]:
    """Return a line for each victim that mpsd names, and counts of those of other users and of suspects."""
    known = [who(party, names) for party in of.victims if party.pid is not None]
    suspects = min(max(0, of.suspected - 1), of.hurt - len(of.victims))
    others = of.hurt - len(known) - suspects
    counted = [f"{others} {'client' if others == 1 else 'clients'} of other users"] if others else []
    return [*known, *counted, *([f"{suspects} of the {of.suspected} suspects"] if suspects else [])]


# -- what can be done now ------------------------------------------------------------------------------------------------


def advice(of: values.IncidentReport) -> Sequence[str]:
    return [*_about_the_bug(of), *_about_the_culprit(of), *_about_the_hurt(of)]


def _about_the_bug(of: values.IncidentReport) -> Iterator[str]:
    program = visible(of.culprit.program) if of.culprit is not None and of.culprit.program else "the program"
    if of.fault_class == "mmu":
        if of.address is not None and of.address < NULL_BYTES:
            yield "Such a low address is a null pointer plus an offset: a pointer that was never set, or a failed allocation."
            if of.address >= SHIELD_BYTES:
                yield "The shield makes such an access harmless, but this client had none (mpsctl clients)."
        yield f"To find the line: run {program} alone, under compute-sanitizer."
    elif of.fault_class == "sm":
        if of.culprit is None:
            yield "With CUDA core dumps the next exception names its culprit: mpsctl env --core-dumps."
        yield f"To find the line: run {program} alone, under compute-sanitizer or cuda-gdb."
    elif of.fault_class == "host":
        yield "End clients by mpsctl stop, which ends their GPU work first. docs/ending.md has hooks for containers and jobs."
    elif of.fault_class == "device":
        yield "Check the GPU before it is used again: nvidia-smi -q, and the kernel log."
        if of.gpu is not None:
            yield f"mpsctl blame shows whether it is drained. After a reset or a replacement: mpsctl pardon {of.gpu}"
    else:
        yield "Read the messages of the domain and the driver at that time: server.log, and the kernel log."


def _about_the_culprit(of: values.IncidentReport) -> Iterator[str]:
    if of.confidence == "suspected" and of.culprit_key is None:
        yield "mpsctl blame shows the groups of suspects. Start them again: the group that faults has the culprit."
    held = of.culprit_key if of.culprit is None else of.culprit.key
    if held is not None:
        key = visible(shlex.quote(held))
        yield f"mpsctl blame shows whether it is in quarantine. After the bug is fixed: mpsctl pardon {key}"


def _about_the_hurt(of: values.IncidentReport) -> Iterator[str]:
    if of.hurt and of.fault_class != "device":
        yield "Each victim has lost its context, and cannot make another one: start its process again."
