"""Train on two GPUs, one process each, and go on from the newest complete epoch when a process is lost.

    python two_ranks.py GROUP DIRECTORY --gpus 0 1 --steps 40 --every 4

The launcher starts both ranks and, when one has ended early, ends the other, asks `mpsd-images epochs` once, and starts both
from that epoch.  The ranks exchange gradients through a socket, where a real job has torch.distributed; "weights" are bytes
that each step makes of all earlier ones.  Prose: mpsd's docs/images.md, "Epochs of several processes".
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from mpsd_client import Arena, Client, Epoch, ErrorCode, ImageError, Refused, calls, restore_image

RANKS = ("rank0", "rank1")
WEIGHTS = 4 << 20
HASH = 32
LOOK_SECONDS = 0.05
REMOVE_SECONDS = 30.0  # the GPU work of a killed process ends before


def launch(asked: argparse.Namespace) -> int:
    command = ["mpsd-images", "epochs", asked.group, "--directory", asked.directory, "--json"]
    while True:
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        recovery = found["recovery"] or {"number": 0, "images": {}}
        say(life=found["next_life"], epoch=recovery["number"])
        links = socket.socketpair()
        ranks = []
        for number, link in enumerate(links):
            start = {"rank": number, "life": found["next_life"], "link": link.fileno(), "epoch": recovery["number"]}
            start["image"] = recovery["images"].get(RANKS[number], "")
            words = [sys.executable, __file__, *sys.argv[1:], "--start", json.dumps(start)]
            ranks.append(subprocess.Popen(words, pass_fds=[link.fileno()]))
            link.close()
        try:
            if all_end_well(ranks):
                return 0
        finally:
            for each in ranks:
                each.kill()
                each.wait()


def all_end_well(ranks: list["subprocess.Popen[bytes]"]) -> bool:
    """Wait until all have ended, or one has failed: also one that waited too long for a hung one."""
    while None in (statuses := [each.poll() for each in ranks]) and not any(statuses):
        time.sleep(LOOK_SECONDS)
    return not any(statuses)


def run_rank(asked: argparse.Namespace, start: dict[str, Any]) -> int:
    rank, link = start["rank"], socket.socket(fileno=start["link"])
    link.settimeout(asked.hung_after)
    say(rank=rank, pid=os.getpid(), image=start["image"])
    arena = open_arena(asked, start, f"{asked.group}-{RANKS[rank]}")
    [block] = arena.blocks()
    taking = None
    for step in range(start["epoch"] + 1, asked.steps + 1):
        weights = hashlib.sha256(arena.copy_out(block.address, WEIGHTS)).digest()
        gradient = hashlib.sha256(weights + bytes([rank])).digest()  # of this rank's part of the batch
        gradients = exchange(link, gradient, rank)
        arena.copy_in(block.address, hashlib.shake_256(weights + gradients).digest(WEIGHTS))
        say(rank=rank, pid=os.getpid(), step=step)
        if step % asked.every == 0:
            epoch = Epoch(asked.group, RANKS[rank], RANKS, start["life"], step)
            try:
                taking = arena.image(directory=asked.directory, epoch=epoch)
                taking.barrier()  # the next image waits until this one is on the disk
            except ImageError as exc:  # costs this epoch, not the training
                say(rank=rank, failed=str(exc))
    say(rank=rank, weights=hashlib.sha256(arena.copy_out(block.address, WEIGHTS)).hexdigest())
    if taking:
        taking.end()
    arena.close()
    return 0


def open_arena(asked: argparse.Namespace, start: dict[str, Any], name: str) -> Arena:
    """The arena of the life before has later bytes than the epoch: it makes room for the image's."""
    gpu = asked.gpus[start["rank"]]
    with Client() as mpsd:
        remove(mpsd, name)
        if start["image"]:
            restore_image(mpsd, start["image"], name, gpu=gpu, directory=asked.directory)
    if start["image"]:
        return Arena.open(name, REMOVE_SECONDS)
    if start["epoch"]:
        raise SystemExit(f"{name} has no image of epoch {start['epoch']}: it needs the weights of another rank")
    arena = Arena.create(name, 64 << 20, gpu)
    arena.copy_in(arena.allocate(WEIGHTS).address, bytes(WEIGHTS))
    arena.commit(b"weights")
    return arena


def remove(mpsd: Client, name: str) -> None:
    """Remove this user's arena; to root a name alone would mean any user's."""
    end = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            mpsd.ask(calls.arena_remove(f"{mpsd.hello.uid}:{name}"))
        except Refused as exc:
            if exc.code == ErrorCode.NO_SUCH_ARENA:
                return
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def exchange(link: socket.socket, mine: bytes, rank: int) -> bytes:
    """Return the gradients of both ranks.  Ends this process if the other one is lost, or hangs."""
    try:
        link.sendall(mine)
        other = link.recv(HASH, socket.MSG_WAITALL)
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        other = b""
    if len(other) < HASH:
        raise SystemExit("the other rank is lost")
    return other + mine if rank else mine + other


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")  # in one piece: both ranks write there


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("group")
    parser.add_argument("directory")
    parser.add_argument("--gpus", nargs=2, default=["0", "1"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=4, help="steps from one image to the next")
    parser.add_argument("--hung-after", type=float, default=120.0, help="seconds that a rank waits for the other")
    parser.add_argument("--start", help=argparse.SUPPRESS)  # from the launcher to a rank
    asked = parser.parse_args()
    return run_rank(asked, json.loads(asked.start)) if asked.start else launch(asked)


if __name__ == "__main__":
    sys.exit(main())
