"""dispatch(): the only way from a request to a handler, and so the only place that checks privilege and records changes.

    request --METHODS--> method --parse--> ask --(descriptors?)--(may the peer?)--> handler --> result

A change is recorded whether it succeeds or fails; of a method that seldom changes something, the calls that did.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from mpsd.api.audit import DONE, Audit
from mpsd.api.authority import Peer
from mpsd.api.call import Call
from mpsd.api.method_table import METHODS, Method, Privilege
from mpsd.api.ports import Ports
from mpsd.errors import BadRequest, MpsdError, NoSuchMethod, NotAllowed, ProtocolError
from mpsd.host.descriptors import is_prompt
from mpsd.model.describe import describe
from mpsd.model.lease import SelectorKind
from mpsd.wire import params
from mpsd.wire.messages import CreateLease
from mpsd.wire.plain import plain
from mpsd.wire.rpc import Request

BUG = "bug"
GIVEN_UP = "given up"  # the caller has hung up, or mpsd is ending
HIDDEN = "(hidden)"


async def dispatch(call: Call[Request], audit: Audit) -> Mapping[str, Any]:
    """Run the request and return its result.  Raises MpsdError for a refusal; any other exception is a bug."""
    method = METHODS.get(call.ask.method)
    if method is None:
        raise NoSuchMethod(f"unknown method {describe(call.ask.method)}")
    ask: Any = params.parse(method.ask, call.ask.params)  # a malformed request changes nothing: not recorded
    _count(method, ask, call)
    if not method.changes:
        result = await _run(method, call, ask)
        if method.told is not None and (told := method.told(result)):
            audit.record(call.peer, call.ask.method, _record(ask), f"{DONE}: {told}")
        return result
    outcome, is_refused = BUG, False
    try:
        result = await _run(method, call, ask)
        outcome = f"{DONE}: {method.told(result)}" if method.told else DONE
    except MpsdError as error:
        outcome, is_refused = f"{error.code.name}: {error}", True
        raise
    except trio.Cancelled:
        outcome = GIVEN_UP
        raise
    finally:
        audit.record(call.peer, call.ask.method, _record(ask), outcome, is_refused=is_refused)
    return result


async def _run(method: Method, call: Call[Request], ask: Any) -> Mapping[str, Any]:
    _check(method, call.services, call.peer, ask, call.ask.method)
    return await method.run(msgspec.structs.replace(call, ask=ask))


def _count(method: Method, ask: Any, call: Call[Request]) -> None:
    """Check the number and the kinds of descriptors that came with the request.  Raises the refusal."""
    name, found = call.ask.method, len(call.taken)
    if method.takes is None:
        if found:
            raise ProtocolError(f"the request carries descriptors, and {name} takes none")
    elif found != (wanted := method.takes(ask)):
        raise BadRequest(f"{name} carries {found} descriptors, and by its parameters it takes {wanted}")
    elif call.taken.files or not all(map(is_prompt, call.taken.held)):
        raise BadRequest(f"{name} carries a descriptor that is neither a GPU's nor a memory file")


def _check(method: Method, services: Ports, peer: Peer, ask: Any, name: str) -> None:
    """Check the peer's privilege.  Raises the refusal."""
    if peer.is_operator or method.privilege in (Privilege.ANYONE, Privilege.SEEN, Privilege.CLIENT):
        return
    if method.privilege is Privilege.OPERATOR:
        raise NotAllowed(f"{name} needs an operator; you are user {peer.uid}")
    assert method.refusal is not None, "a row whose privilege depends on what is asked for says how it is refused"
    if refusal := method.refusal(services, peer, ask):
        raise refusal


def _record(ask: Any) -> Mapping[str, Any]:
    """Return the request for the audit, without the token, which is the right to use a lease."""
    if isinstance(ask, CreateLease) and ask.selector.kind is SelectorKind.TOKEN:
        ask = msgspec.structs.replace(ask, selector=msgspec.structs.replace(ask.selector, value=HIDDEN))
    shown: Mapping[str, Any] = plain(ask)
    return shown
