"""A process that serves the model, or stands by to do so.

    mpsctl service run llm -- python member.py --backend $XDG_RUNTIME_DIR/llm.sock --shape 0.5B

Each process started this way is a member of the service (--memory arena): one makes tokens, the others wait with the same
memory mapped and the same graphs captured.  Each reports its progress with times as JSON lines (--report).  For comparison:

--memory plain   without mpsd, in memory that ends with the process, as in most servers
--memory host    as plain, but the weights wait in host memory until a line arrives on standard input

--engine toy needs no PyTorch: see toy.py.
"""

import argparse
import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from link import Link
from makers import Maker, TorchMaker, ToyMaker
from record import PUBLISHED, Forward, Nowhere, schema, slots_of
from report import Report
from scheduler import Scheduler, Size
from serving import Serving

DISMISSED = 3  # exit status of a member that mpsd dismissed
LOOK_SECONDS = 1.0  # how often a standby checks whether a signal asked it to stop
UNHELD_SECONDS = 3600.0  # how long the arena stays without a member
REPLICA_LAG_SECONDS = 30.0  # mpsd warns of an older replica


def maker_of(options: argparse.Namespace, size: Size) -> Maker:
    if options.engine == "toy":
        return ToyMaker(size, options.pace, has_gpu=options.device == "cuda")
    return TorchMaker(options.shape, size, options.seed, options.device)


def hello(maker: Maker, size: Size, generation: int) -> dict[str, Any]:
    return {"generation": generation, "pid": os.getpid(), "vocab": maker.engine.vocab, "length": size.length}


def settle() -> None:
    """Exclude all existing objects from garbage collection, which would take milliseconds to traverse them."""
    gc.collect()
    gc.freeze()


class Member:
    """A member in any of the three memory modes."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.options, self.report = options, report
        self.size = Size.of(options.slots, options.length, options.page, options.pages)
        self.maker = maker_of(options, self.size)
        self.is_stopping = threading.Event()
        self.service: Any = None

    def heed_signals(self) -> None:
        """From now on, SIGTERM and Ctrl-C end the member after the current step."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.is_stopping.set())

    def in_arena(self) -> None:
        """Run as a member of the service until a signal stops it.  Raises Dismissed."""
        from mpsd_client import ImageSchedule, Service

        options, maker = self.options, self.maker
        service = self.service = Service(
            options.service,
            capacity=maker.capacity_bytes,
            schema=schema(self.size),
            rank=options.rank,
            heartbeat=options.heartbeat,
            ttl=UNHELD_SECONDS,
            images=ImageSchedule(options.every, options.images) if options.images else None,
            replica_lag=REPLICA_LAG_SECONDS if options.images else None,
        )
        with suppress(BufferError), service:  # the engine's tensors prevent the close; the end of the process closes the arena
            maker.begin()
            self.report.say("context")
            arena = service.open()
            self.report.say("opened", layout=arena.layout is not None)
            service.on_commit(self._adopt)
            if arena.layout is not None:
                self._adopt(arena)
            self.heed_signals()
            self.report.say("standby")
            while not self.is_stopping.is_set():
                if term := service.standby(LOOK_SECONDS):
                    with term:
                        self._serve(term)
                    if not self.is_stopping.is_set():
                        self.report.say("yielded", generation=term.generation)

    def _adopt(self, arena: Any) -> None:
        """Map the arena as committed, and rehearse a step without requests: after this, the member lacks only the right to
        write."""
        self.maker.adopt(arena)
        engine = self.maker.engine

        def step() -> None:
            engine.launch(None, is_step=True)
            engine.wait()

        self.service.rehearse(step, writes=engine.writes)
        self.report.say("warm")
        settle()

    def _serve(self, term: Any) -> None:
        """Serve one term.  The path to the first step sends mpsd no request and builds nothing that could exist before."""
        if term.arena.layout is None:
            self.maker.build(term.arena)
            self.report.say("warm")
            settle()
        scheduler, step = Scheduler(self.size), 0
        if term.record is not None:
            scheduler.restore(slots_of(term.record, self.size))
            step = term.record["step"]
        facts = {"generation": term.generation, "told_ns": term.promoted_ns, "record": term.record is not None}
        self.report.say("promoted", **facts, busy=len(scheduler.requests))
        journal = Forward(term.state, term.publisher(*PUBLISHED), self.size)
        link = Link(self.options.backend, hello(self.maker, self.size, term.generation))
        serving = Serving(self.maker.engine, scheduler, journal, link, self.report, step=step)
        serving.run(lambda: term.is_over or self.is_stopping.is_set())

    def alone(self) -> None:
        """Serve without mpsd until a signal stops it.  Of several such processes the newest serves."""
        self.maker.begin()
        self.report.say("context")
        if self.options.memory == "host":
            sleeper = self.maker.sleeping()
            self.report.say("sleeping")
            sys.stdin.readline()
            self.report.say("woken")
            sleeper.wake()
        else:
            self.maker.plain()
        self.report.say("warm")
        settle()
        self.heed_signals()
        generation = time.monotonic_ns()
        self.report.say("promoted", generation=generation, told_ns=generation, record=False)
        link = Link(self.options.backend, hello(self.maker, self.size, generation))
        serving = Serving(self.maker.engine, Scheduler(self.size), Nowhere(), link, self.report)
        serving.run(self.is_stopping.is_set)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", default=os.environ.get("MPSD_SERVICE", "llm"), help="name of the service and its arena")
    parser.add_argument("--backend", required=True, help="the front end's socket for members")
    parser.add_argument("--engine", choices=("torch", "toy"), default="torch")
    parser.add_argument("--memory", choices=("arena", "plain", "host"), default="arena")
    parser.add_argument("--shape", default="0.5B", help="tiny, 0.5B, 1.5B, 3B, 7B, 14B: those of Qwen2.5")
    parser.add_argument("--slots", type=int, default=16, help="requests that are computed at once")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a request at most, its prompt included")
    parser.add_argument("--page", type=int, default=16, help="tokens of which keys and values lie in one page")
    parser.add_argument("--pages", type=int, default=0, help="of all requests together; 0: enough for all slots")
    parser.add_argument("--seed", type=int, default=586, help="of the weights")
    parser.add_argument("--rank", type=int, default=0, help="of several standbys, the lowest serves next")
    parser.add_argument("--heartbeat", type=float, default=0.0, help="seconds of silence, then another one serves; 0: never")
    parser.add_argument("--images", help="a directory for images of the arena; a member on another GPU keeps a replica then")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two images")
    parser.add_argument("--device", default="cuda", help="PyTorch's word; cpu, the toy's too, needs --memory plain")
    parser.add_argument("--pace", type=float, default=0.0, help="toy: seconds that a step takes")
    parser.add_argument("--report", default="-", help="a file to append to; -: standard output")
    parser.add_argument("--report-every", type=int, default=0, help="of so many steps one is told of; 0: none")
    options = parser.parse_args()
    if options.device != "cuda" and options.memory != "plain":
        parser.error("--device other than cuda needs --memory plain")
    return options


def main() -> None:
    options = parse()
    report = Report(options.report, options.report_every)
    report.say("begin", memory=options.memory, engine=options.engine)
    member = Member(options, report)
    if options.memory == "arena":
        from mpsd_client import Dismissed

        try:
            member.in_arena()
        except Dismissed as exc:  # another member serves, or will; the starter of this one may start a replacement
            report.say("dismissed", why=str(exc))
            raise SystemExit(DISMISSED) from None
    else:
        member.alone()
    report.say("end")


if __name__ == "__main__":
    main()
