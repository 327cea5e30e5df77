"""Serve one HTTP request and close the connection.  A slow, large or wrong request gets an error, or is just closed.

server.py has the pages.  h11 parses the bytes.
"""

from collections.abc import Awaitable, Callable, Mapping

import h11
import trio
from msgspec import Struct

HEADER_BYTES = 8192  # of a request: Prometheus sends a few hundred
REQUEST_SECONDS = 5.0
SEND_SECONDS = 5.0
_RECEIVE_BYTES = 4096
_METHODS = (b"GET", b"HEAD")


class HttpAnswer(Struct, frozen=True):
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class Visit(Struct, frozen=True):
    """A request, as far as a page looks at it: what follows the question mark, and the headers by name in lower case."""

    query: str
    headers: Mapping[str, str]


Page = Callable[[Visit], Awaitable[HttpAnswer]]


async def converse(stream: trio.abc.Stream, pages: Mapping[str, Page]) -> str:
    """Answer one request and close the stream; return what went wrong, in words, or an empty text.

    `pages`: by path.  A request's body is not read: no page takes one.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
    method, trouble = b"", ""
    async with stream:
        try:
            with trio.fail_after(REQUEST_SECONDS):
                request = await _receive(stream, connection)
            if request is None:
                return ""  # it only checked whether the port is open
            method, answer = request.method, await _answer(request, pages)
        except h11.RemoteProtocolError as exc:
            trouble = str(exc)
            answer = HttpAnswer(exc.error_status_hint, f"{exc}\n".encode())
        except trio.TooSlowError:
            trouble = f"no request came within {REQUEST_SECONDS:g} s"
            answer = HttpAnswer(408, f"{trouble}\n".encode())
        except trio.BrokenResourceError:
            return "it hung up"
        return await _send(stream, _encode(connection, answer, has_body=method != b"HEAD")) or trouble


async def _receive(stream: trio.abc.Stream, connection: h11.Connection) -> h11.Request | None:
    """Return the request; None if the client ended without one.  Raise RemoteProtocolError or BrokenResourceError."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if isinstance(event, h11.ConnectionClosed):
            return None
        connection.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))


async def _answer(request: h11.Request, pages: Mapping[str, Page]) -> HttpAnswer:
    path, _, query = request.target.decode("ascii", "replace").partition("?")
    page = pages.get(path)
    if page is None:
        return HttpAnswer(404, f"pages: {', '.join(pages)}\n".encode())
    if request.method not in _METHODS:
        return HttpAnswer(405, b"methods: GET, HEAD\n")
    headers = {name.decode("ascii", "replace"): value.decode("ascii", "replace") for name, value in request.headers}
    return await page(Visit(query, headers))


def _encode(connection: h11.Connection, answer: HttpAnswer, *, has_body: bool) -> bytes:
    headers = [
        ("Content-Type", answer.kind),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        *answer.headers,
        ("Connection", "close"),
    ]
    data = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if has_body:
        data += connection.send(h11.Data(data=answer.body)) or b""
    return data + (connection.send(h11.EndOfMessage()) or b"")


async def _send(stream: trio.abc.Stream, data: bytes) -> str:
    """Send the data; return what went wrong, in words."""
    try:
        with trio.fail_after(SEND_SECONDS):
            await stream.send_all(data)
    except trio.TooSlowError:
        return f"it did not take its answer within {SEND_SECONDS:g} s"
    except trio.BrokenResourceError:
        return "it hung up before its answer"
    return ""
