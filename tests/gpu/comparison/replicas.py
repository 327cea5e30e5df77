"""Services with a replica on a second GPU, as the sections use them."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpsd_client import Client as Mpsd
from mpsd_client import Refused, calls, values

from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.llm import Llm
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

EVERY = 1.0  # seconds between two images
MOST_AGE = 3 * EVERY  # of a replica: an image is begun each second, copied to the host, and from there
READY_SECONDS, LOOK_SECONDS = 90.0, 0.05
_KEPT = "3"  # images



def replica_age(system: System, service: str) -> float:
    """Return the seconds since the moment of the image that the replica has; infinite without one."""
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        replica: values.Replica | None = mpsd.ask(calls.service_get(service)).replica
    return time.time() - replica.at if replica and replica.at else float("inf")


@contextmanager
def images_in_memory(stage: Stage) -> Iterator[Path]:
    """Make a directory that keeps the newest images; it is gone afterwards."""
    directory = Path("/dev/shm") / f"mpsd-{stage.section}-{time.time_ns()}"
    directory.mkdir(mode=0o700)
    try:
        limit = [str(stage.options.python), "-m", "mpsd.images", "limits", "--directory", str(directory), "--keep", _KEPT]
        subprocess.run(limit, check=True, stdout=subprocess.DEVNULL)
        yield directory
    finally:
        shutil.rmtree(directory)


@dataclass(slots=True)
class ReplicatedLlm:
    """The LLM service with a member on each of two GPUs.  members: by the GPU's UUID."""

    llm: Llm
    directory: Path  # of its images
    members: dict[str, Client] = field(default_factory=dict)

    def start(self, gpu: str, event: str) -> None:
        """Start a member there, and wait until it reports this event.  Raise SystemFailed."""
        words = ("--images", str(self.directory), "--every", f"{EVERY:g}")
        self.members[gpu] = self.llm.member(*words, environment={"CUDA_VISIBLE_DEVICES": gpu})
        if self.members[gpu].wait_for(event, READY_SECONDS) is None:
            raise SystemFailed(f"a member is not {event}: {self.members[gpu].trouble}"[:300])

    def service(self) -> values.Service:
        with Mpsd(self.llm.system.pipe / "mpsd.sock") as mpsd:
            return mpsd.ask(calls.service_get(self.llm.service))

    def wait_for_replica(self, since: float) -> None:
        """Wait until the replica has an image that is later than this moment, in seconds since the epoch."""

        def is_made() -> bool:
            try:
                replica = self.service().replica
            except Refused:
                return False
            return replica is not None and (replica.at or 0.0) > since

        self.wait("a replica", is_made)

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Raise SystemFailed if it is not so within READY_SECONDS."""
        end = time.monotonic() + READY_SECONDS
        while not is_so():
            if time.monotonic() > end:
                raise SystemFailed(f"no {what}: " + "; ".join(str(each.trouble) for each in self.members.values())[:300])
            time.sleep(LOOK_SECONDS)

    def end(self) -> None:
        end_all(self.members.values())
        self.llm.end()
