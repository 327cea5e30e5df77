"""The datagrams of one connection, and the descriptors that they carry; connection.py interprets them."""

import socket

from mpsd.errors import ProtocolError
from mpsd.host.datagrams import Datagram
from mpsd.model.arena import MOST_DESCRIPTORS
from mpsd.wire.rpc import MAX_BYTES, Request, decode


def parse(datagram: Datagram) -> Request:
    """Decode a request.  Raises ProtocolError if it is not one, is too large, or had more descriptors than fit."""
    if datagram.flags & socket.MSG_TRUNC:
        raise ProtocolError(f"a datagram has more than {MAX_BYTES} bytes")
    if datagram.flags & socket.MSG_CTRUNC or len(datagram.descriptors) > MOST_DESCRIPTORS:
        raise ProtocolError(f"a datagram carries more than {MOST_DESCRIPTORS} descriptors, or more than mpsd can open")
    request = decode(datagram.data)
    if not isinstance(request, Request):
        raise ProtocolError("only requests come from clients")
    return request
