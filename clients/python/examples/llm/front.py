"""The front end: HTTP towards clients, a Unix socket towards members.  A process of its own, without a GPU, which nothing that
happens to a GPU can hurt: connections of clients live here, and members come and go behind them.

    python front.py --listen 127.0.0.1:8080 --backend $XDG_RUNTIME_DIR/llm.sock

    POST /generate   {"prompt": [ids] or "text", "max_tokens", "seed", "temperature", "top_k", "stop"}
                     -> JSON lines: {"token", "index"}, ..., {"done": true}; or {"error"} as the last one
    GET /health      200 while a member serves, else 503
    GET /stats       counters

The bytes of a text are its token ids.  Each connection carries one request; a client that closes its side cancels it.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import trio
from asked import of_client
from backend import Backend, complain, listen
from streams import Stream, Streams
from web import BadRequest, Exchange, Url

RETRY_AFTER = "1"  # seconds
FLUSH_SECONDS = 0.5
SPARE_CONNECTIONS = 256  # of clients beyond `most`, with short requests; further descriptors are for members


class Front:
    """The HTTP server.  patience: seconds without a token after which the client receives an error."""

    def __init__(self, most: int, patience: float, record: IO[str] | None) -> None:
        self._patience, self._record = patience, record
        self._connections, self._most_connections = 0, most + SPARE_CONNECTIONS
        self.backend = Backend()
        # The next front end must not reuse numbers either: members may still have requests of this one.
        self.streams = Streams(most, self.backend.tell, self._note, complain, first=time.time_ns())
        self.backend.streams = self.streams

    def _note(self, request: int, index: int) -> None:
        if self._record:
            self._record.write(json.dumps({"monotonic_ns": time.monotonic_ns(), "request": request, "index": index}) + "\n")

    async def serve(self, connection: trio.SocketStream) -> None:
        """Serve one HTTP client.  An error of the client ends its connection and nothing else."""
        async with connection:
            if self._connections >= self._most_connections:
                return  # without an answer, which would take time
            self._connections += 1
            try:
                await self._exchange(Exchange(connection))
            finally:
                self._connections -= 1

    async def _exchange(self, exchange: Exchange) -> None:
        with suppress(trio.BrokenResourceError, trio.TooSlowError):
            try:
                if found := await exchange.receive():
                    await self._answer(exchange, *found)
            except BadRequest as exc:
                if not exchange.has_begun:
                    await exchange.answer(exc.status, {"error": str(exc)})

    async def _answer(self, exchange: Exchange, method: str, path: str, body: bytes) -> None:
        if (method, path) == ("POST", "/generate"):
            await self._generate(exchange, body)
        elif (method, path) == ("GET", "/health"):
            await exchange.answer(200 if self.backend.member else 503, {"serves": self.backend.member is not None})
        elif (method, path) == ("GET", "/stats"):
            await exchange.answer(200, self.stats())
        else:
            raise BadRequest(404, "there are POST /generate, GET /health, GET /stats")

    def stats(self) -> dict[str, Any]:
        member = self.backend.member
        facts = {"open": len(self.streams), "generation": self.backend.generation}
        return facts | {"member": member.hello if member else None} | self.streams.counts.facts()

    async def _generate(self, exchange: Exchange, body: bytes) -> None:
        try:
            request = of_client(self.streams.number(), json.loads(body))
        except (ValueError, RecursionError) as exc:
            raise BadRequest(400, str(exc)) from None
        bell = Bell()
        stream = self.streams.begin(request, bell.ring)
        if stream is None:
            await exchange.answer(503, {"error": "as many requests are open as may be"}, retry_after=RETRY_AFTER)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, exchange, nursery.cancel_scope)
                with suppress(trio.BrokenResourceError, trio.TooSlowError):  # inside the nursery, which would wrap them
                    await self._pass_on(exchange, stream, bell)
                nursery.cancel_scope.cancel()
        finally:
            self.streams.end(stream)

    async def _watch(self, exchange: Exchange, scope: trio.CancelScope) -> None:
        await exchange.wait_for_end()
        scope.cancel()

    async def _pass_on(self, exchange: Exchange, stream: Stream, bell: "Bell") -> None:
        """Send tokens as they arrive; those that arrive during a send go out together."""
        sent = 0
        while not stream.is_complete or sent < len(stream.tokens):
            with trio.move_on_after(self._patience) as waited:
                await bell.wait()
            if waited.cancelled_caught:
                stream.why = f"no token came within {self._patience:g} seconds"
                self.streams.end(stream)
            if stream.why:
                await self._fail(exchange, 503 if waited.cancelled_caught else 400, stream.why)
                return
            if not exchange.has_begun:
                await exchange.begin(200)
            lines = [{"token": token, "index": index} for index, token in enumerate(stream.tokens[sent:], sent)]
            sent += len(lines)
            await exchange.lines([*lines, {"done": True}] if stream.is_complete else lines)
        await exchange.end()

    async def _fail(self, exchange: Exchange, status: int, why: str) -> None:
        if not exchange.has_begun:
            await exchange.answer(status, {"error": why})
        else:
            await exchange.lines([{"error": why}])
            await exchange.end()


class Bell:
    """Wakes one waiter; several rings without a waiter count as one."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


async def run(front: Front, url: Url, backend: str, flush: Callable[[], None], say: Callable[[str], None]) -> None:
    """Run the front end until SIGTERM or Ctrl-C.  Raises OSError if it cannot listen."""
    members = listen(backend)
    try:
        clients = await trio.open_tcp_listeners(url.port, host=url.host)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.serve_listeners, front.backend.serve, [members]))
                nursery.start_soon(partial(trio.serve_listeners, front.serve, clients))
                nursery.start_soon(_flush_now_and_then, flush)
                host, port = clients[0].socket.getsockname()[:2]
                say(f"http://{host}:{port}")
                async for _ in signals:
                    nursery.cancel_scope.cancel()
    finally:
        flush()
        Path(backend).unlink(missing_ok=True)  # noqa: ASYNC240 - waits for nothing


async def _flush_now_and_then(flush: Callable[[], None]) -> None:
    while True:
        await trio.sleep(FLUSH_SECONDS)
        flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--listen", default="127.0.0.1:8080", help="host:port; port 0: any, see what it prints")
    parser.add_argument("--backend", required=True, help="the socket for members, of this user only")
    parser.add_argument("--most", type=int, default=256, help="requests that may be open; more are answered 503")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds without a token, then a client is told so")
    parser.add_argument("--record", default="", help="a file: when each token came, as JSON lines")
    options = parser.parse_args()
    record = open(options.record, "a", buffering=1 << 16) if options.record else None  # noqa: SIM115 - for its whole life
    front = Front(options.most, options.patience, record)
    flush = record.flush if record else lambda: None
    try:
        trio.run(run, front, Url.of(options.listen), options.backend, flush, partial(print, flush=True))
    except OSError as exc:
        raise SystemExit(f"front: {exc}") from None


if __name__ == "__main__":
    main()
