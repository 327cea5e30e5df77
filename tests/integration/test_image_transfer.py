"""An image goes from one machine to another: two network namespaces, a line that loses packets, and one that is cut."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest

from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images
from tests.unit.images.making import contents_of, expected, stored_blocks, take

BLOCKS = {place: 100 + place for place in range(60)}
RELAY = """
import os, socket, sys, threading
with socket.create_connection(("192.0.2.2", 4000)) as line:
    def back():
        while piece := line.recv(1 << 16):
            os.write(1, piece)
        os.close(1)
    threading.Thread(target=back, daemon=True).start()
    while piece := os.read(0, 1 << 16):
        line.sendall(piece)
    line.shutdown(socket.SHUT_WR)
    while line.recv(1):
        pass
"""
SERVER = """
import socket, subprocess, sys
with socket.create_server(("192.0.2.2", 4000)) as door:
    print("ready", flush=True)
    while True:
        with door.accept()[0] as line:
            subprocess.Popen(sys.argv[1:], stdin=line, stdout=line).wait()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(500),
    pytest.mark.skipif(not (which("ip") and which("nft")), reason="needs ip and nft (iproute2, nftables)"),
]


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def inside(host: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", host, *words]


@pytest.fixture
def hosts() -> Iterator[None]:
    """Make two hosts with a line between them; the second one loses every fiftieth packet."""
    try:
        for number in (1, 2):
            ip(f"netns add mpsd-test-{number}")
        ip("link add mpsd-test-1 netns mpsd-test-1 type veth peer name mpsd-test-2 netns mpsd-test-2")
        for number in (1, 2):
            ip(f"-n mpsd-test-{number} addr add 192.0.2.{number}/24 dev mpsd-test-{number}")
            ip(f"-n mpsd-test-{number} link set mpsd-test-{number} up")
        rules = "table ip t { chain c { type filter hook input priority 0; numgen random mod 50 == 0 drop; }; }"
        subprocess.run(inside("mpsd-test-2", "nft", rules), check=True)
        yield
    finally:
        for number in (1, 2):
            subprocess.run(["ip", "netns", "del", f"mpsd-test-{number}"], check=False)


@pytest.fixture
def directory(tmp_path: Path, hosts: None) -> Iterator[Path]:
    """Run a receiver for each connection on the second host; return its directory of images."""
    receive = [sys.executable, "-m", "mpsd.images", "receive", "--stall", "3s", "--directory", str(tmp_path / "there")]
    command = inside("mpsd-test-2", sys.executable, "-c", SERVER, *receive)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield tmp_path / "there"
        finally:
            server.kill()


def sending(here: Path, name: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "mpsd.images", "send", name, "--directory", str(here), "--json", "--stall", "3s", "--"]
    command = inside("mpsd-test-1", *words, sys.executable, "-c", RELAY)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_line_that_loses_packets_and_is_cut(directory: Path, tmp_path: Path) -> None:
    with Images.open(tmp_path / "here") as here, Images.open(directory) as there:
        take(here, "first", BLOCKS)
        with sending(tmp_path / "here", "first") as cut:
            until(lambda: stored_blocks(there) >= 10, "ten blocks have arrived")
            ip("-n mpsd-test-2 link set mpsd-test-2 down")
            _, error = cut.communicate(timeout=120)
        assert (cut.returncode, "send it again to go on" in error) == (1, True), error
        until(lambda: bool(there.listing().images), "the receiver has kept what came")
        (partial,) = there.listing().images
        kept = partial.content_bytes // BLOCK_BYTES
        assert (partial.group, 10 <= kept < len(BLOCKS)) == ("first.partial", True)
        ip("-n mpsd-test-2 link set mpsd-test-2 up")
        with sending(tmp_path / "here", "first") as whole:
            out, error = whole.communicate(timeout=300)
        assert whole.returncode == 0, error
        assert json.loads(out)["sent_bytes"] == (len(BLOCKS) - kept) * BLOCK_BYTES
        assert contents_of(there, "first") == expected(BLOCKS)
        assert (list(there.verify()), [each.name for each in there.listing().images]) == ([], ["first"])
