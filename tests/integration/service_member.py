"""A member of a service that uses only the calls: it counts in a file while it serves.

    service_member.py NAME FILE [--rank N] [--heartbeat SECONDS]

It prints lines of JSON: {"event", "pid", ...}. FILE contains the count; only the process that holds the lock of FILE.lock
counts. While FILE.PID exists it does nothing, like a hung program.
"""

import argparse
import ctypes
import fcntl
import json
import os
import sys
import time
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

from mpsd_client import Client, Disconnected, Refused, State, calls

GRANULE = 2 << 20


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "ns": time.monotonic_ns()} | facts), flush=True)


def begin_cuda() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    for status in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(byref(context), 0), driver.cuCtxSetCurrent(context)):
        assert status == 0, f"CUDA error {status}"
    return driver


class Member:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.path = Path(asked.file)
        self.socket = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "mpsd.sock")  # CUDA may be configured for another
        self.mpsd: Client | None = None
        self.arena = 0
        self.serial: int | None = None
        self.lock = -1
        self.state: State | None = None

    def connect(self) -> Client:
        """As often as it takes: mpsd may be away."""
        while self.mpsd is None:
            try:
                self.mpsd = Client(self.socket, timeout_seconds=20)
                if self.arena:
                    self.join()
            except (OSError, Refused, Disconnected):
                self.mpsd = None
                time.sleep(0.02)
        return self.mpsd

    def ask(self, call: Any) -> Any:
        while True:
            try:
                return self.connect().ask(call)
            except (OSError, Disconnected):
                self.mpsd = None

    def join(self) -> None:
        assert self.mpsd is not None
        self.mpsd.ask(calls.service_join(self.arena, self.asked.rank, self.asked.heartbeat))
        self.serial = None

    def open(self) -> None:
        try:
            self.ask(calls.arena_create(self.asked.name, "0", 4 * GRANULE))
        except Refused:
            pass  # it is there
        arena = self.ask(calls.arena_open(self.asked.name, "read"))
        self.arena = arena.id
        self.join()

    def run(self) -> None:
        os.environ.update(self.ask(calls.service_enlist(self.asked.name)).environment)
        begin_cuda()
        self.open()
        self.ask(calls.service_ready(self.arena))
        say("ready")
        term = 0
        while True:
            told = self.ask(calls.service_follow(self.arena, self.serial, 0.02 if term else 10.0))
            is_new, self.serial = told.serial != self.serial, told.serial
            if told.order == "leave":
                say("dismissed", why=told.why)
                return
            if told.order == "serve" and told.generation != term:
                term = self.begin(told.generation)
            if told.order == "yield" and term:
                self.let_go(term)
                term = 0
            if told.order == "standby" and is_new and not term:
                self.ask(calls.service_ready(self.arena))
            if term:
                self.count(term)

    def begin(self, generation: int) -> int:
        """A member that a fault fenced was killed an instant ago: its lock is free then."""
        say("promoted", generation=generation)
        self.lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(200):
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
        else:
            say("two write")
            sys.exit(1)
        self.state = State.create({"n": "uint64"}, generation=generation)
        self.ask(calls.arena_keep_state(self.arena, generation, self.state.fd))
        self.ask(calls.service_serving(self.arena, generation))
        say("serving", generation=generation)
        return generation

    def count(self, generation: int) -> None:
        while Path(f"{self.path}.{os.getpid()}").exists():
            time.sleep(0.05)
        assert self.state is not None
        n = (int(self.path.read_text()) if self.path.exists() else 0) + 1
        new = self.path.with_suffix(".new")
        new.write_text(str(n))
        new.replace(self.path)
        self.state.publish(n=n)

    def let_go(self, generation: int) -> None:
        os.close(self.lock)
        self.ask(calls.service_yielded(self.arena, generation))
        say("yielded")


if __name__ == "__main__":
    known = argparse.ArgumentParser()
    known.add_argument("name")
    known.add_argument("file")
    known.add_argument("--rank", type=int, default=0)
    known.add_argument("--heartbeat", type=float, default=0.0)
    Member(known.parse_args()).run()
