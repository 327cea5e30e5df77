"""An actor of Ray that another node continues: its state is an arena, of which images go to that node.

Give each node the command that receives images on the next one: `STANDBY="ssh other mpsd-images receive" ray start ...`.
When a node is lost, Ray starts the actor on another one, where it restores the newest image that has arrived: what it did
after that image is lost.
"""

import json
import os
import shlex
import subprocess
import threading
import time

import ray
from mpsd_client import (
    Arena,
    Client,
    ErrorCode,
    ImageSchedule,
    Layout,
    Refused,
    TensorSpec,
    adopt,
    images_directory,
    restore_image,
)  # fmt: skip
from mpsd_client.ray import share

SEND_SECONDS = 600.0


@ray.remote(num_gpus=0.5, max_restarts=-1, max_task_retries=0)
@share()
class Counter:
    def __init__(self, name: str, every: float = 60.0) -> None:
        """every: seconds from one image to the next."""
        self.arena, self.begun_from = open_arena(name)
        self.number = self.arena["number"]
        self.images = ImageSchedule(every)
        self.arrived, self.trouble = "", ""  # the newest image that the other node has; why it lacks a newer one
        threading.Thread(target=self._send, daemon=True).start()

    def add(self) -> dict[str, object]:
        number = int.from_bytes(self.number.tobytes(), "little") + 1
        self.number.frombytes(number.to_bytes(8, "little"))
        self.images.step_done(self.arena)
        trouble = self.images.trouble or self.trouble
        return {"number": number, "begun_from": self.begun_from, "arrived": self.arrived, "trouble": trouble}

    def _send(self) -> None:
        """Send each image; of several that were taken during a transfer only the newest."""
        while True:
            last = self.images.last
            if last and last.name != self.arrived:
                words = ["mpsd-images", "send", last.name, "--", *shlex.split(os.environ["STANDBY"])]
                try:
                    subprocess.run(words, timeout=SEND_SECONDS, capture_output=True, text=True, check=True)
                    self.arrived, self.trouble = last.name, ""
                except subprocess.CalledProcessError as exc:
                    self.trouble = f"{last.name} was not sent: {exc.stderr[-500:].strip()}"
                except (OSError, subprocess.TimeoutExpired) as exc:
                    self.trouble = f"{last.name} was not sent: {exc}"
            time.sleep(0.2)


def open_arena(name: str) -> tuple[Arena, str]:
    """Return the arena and what it begins from: this node's arena, an image that arrived here, or nothing."""
    try:
        return adopt(name, wait=10), "the arena"
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_ARENA:
            raise
    if image := newest_image(name):
        gpu = ray.get_runtime_context().get_accelerator_ids()["GPU"][0]  # not that of the lost node
        with Client() as mpsd:
            restore_image(mpsd, image, name, arena=name, gpu=gpu)
        return adopt(name), image
    arena = Arena.create(name, capacity=2 << 20)
    block = arena.allocate(8)
    arena.commit(Layout({"number": TensorSpec(block.offset, "int64", (), ())}))
    arena["number"].frombytes(bytes(8))
    return arena, "nothing"


def newest_image(arena: str) -> str:
    """Return the newest complete image that this node has of the arena; "" without any."""
    if not images_directory().is_dir():
        return ""
    listed = subprocess.run(["mpsd-images", "list", "--json"], capture_output=True, check=True).stdout
    images = [each for each in json.loads(listed)["images"] if each["name"].startswith(f"{arena}.")]
    complete = [each for each in images if ".partial-" not in each["name"]]
    return str(max(complete, key=lambda each: float(each["instant"]))["name"]) if complete else ""
