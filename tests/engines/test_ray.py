"""What mpsd_client.ray promises, with real Ray: two nodes on one machine, each with a simulated GPU and an mpsd of its own."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Selector, calls

from tests.engines.transcripts import Transcript
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.deadline(300)]
RAY = "ray==2.60.0"
ANSWER_SECONDS = 120.0
EXAMPLES = ROOT / "clients/python/examples"
SCENES = Path(__file__).with_name("ray_scenes.py")


class Ray:
    """Guards that the scenes run one after the other, in a process that has Ray."""

    def __init__(self, python: Path, machines: list[Machine], home: Path) -> None:
        self.machines = machines
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(home)}
        environment["PYTHONPATH"] = str(EXAMPLES)
        environment["MPSD_SIM_DIR"] = machines[0].variables["MPSD_SIM_DIR"]  # its processes end with the machine
        words: list[str | Path] = ["unshare", "--net", python, SCENES]
        with (home / "stderr").open("w") as errors:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )
        self._errors = home / "stderr"
        assert self._tell([self._variables(number) for number in range(len(machines))]) == ["ok", len(machines)]

    def _variables(self, node: int) -> dict[str, str]:
        """Of a node, whose images go to the next one; `env` stands for `ssh`."""
        images = [str(machine.place / "images") for machine in self.machines]
        standby = f"env MPSD_IMAGES={images[node - 1]} mpsd-images receive"
        variables = self.machines[node].variables
        path = f"{Path(sys.executable).parent}:{variables['PATH']}"  # where mpsd-images and mpsd-imager are
        return variables | {"PATH": path, "MPSD_IMAGES": images[node], "STANDBY": standby, "PYTHONPATH": str(EXAMPLES)}

    def run(self, scene: str, **arguments: Any) -> Any:
        said, result = self._tell([scene, arguments])
        assert said == "ok", result
        return result

    def error(self, scene: str, **arguments: Any) -> str:
        said, result = self._tell([scene, arguments])
        assert said == "error", result
        return str(result)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _tell(self, what: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        assert line, self._errors.read_text()[-4000:]
        return json.loads(line)


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with Ray, 79 MB of wheels, and the wheel of mpsd_client."""
    venv = tmp_path_factory.mktemp("ray") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wheel = next(dist.glob("mpsd_client-*.whl"))
    words = [venv / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "install", RAY, wheel]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return venv / "bin/python"


@pytest.fixture(scope="module")
def nodes(programs: None, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    with ExitStack() as stack:
        machines = [stack.enter_context(open_machine()) for _ in range(2)]
        for machine in machines:
            machine.start()
        home = machines[0].place / "ray"  # a short path: Ray's sockets are below it
        home.mkdir()
        made = Ray(python, machines, home)
        yield made
        made.close()


def test_a_task_has_its_part_and_its_lease_ends_with_it(nodes: Ray) -> None:
    seen, pid, leases = nodes.run("run_task", node=1)
    assert (seen, leases) == (38, [["count", 30.0]])
    assert nodes.run("wait_for_no_lease", node=1) == []
    assert nodes.run("run_task", node=1)[1] != pid


def test_tasks_that_fit_run_at_once_on_both_nodes_and_none_is_without_its_limit(nodes: Ray) -> None:
    assert nodes.run("run_many", count_of=8) == [38] * 8


def test_a_generator_has_its_part(nodes: Ray) -> None:
    assert nodes.run("run_generator")[0] == 38


def test_a_task_without_a_part_of_a_gpu_is_told_so(nodes: Ray) -> None:
    assert "ask for one, as in @ray.remote(num_gpus=0.3)" in nodes.error("run_without_a_gpu")


def test_an_actor_that_is_killed_starts_again_with_its_part_and_its_state(nodes: Ray) -> None:
    number, pid, seen = nodes.run("make_actor", name="kept", node=0)
    assert (number, seen) == (1, 66)
    assert nodes.run("see", node=0) == [["Counter", 50.0]]
    number, other, seen = nodes.run("kill_process", name="kept")
    assert (number, seen) == (3, 66)
    assert other != pid
    assert nodes.run("see", node=0) == [["Counter", 50.0]]
    nodes.run("end_actor", name="kept")
    assert nodes.run("wait_for_no_lease", node=0) == []


def test_a_share_that_mpsd_has_not_is_refused_with_the_reason(nodes: Ray) -> None:
    """Another program holds the GPU, of which Ray knows nothing."""
    with nodes.machines[0].mpsd() as mpsd:
        lease = mpsd.ask(calls.lease_create("another", Selector.of_uid(4711), sm_percent=80))
        said = nodes.error("run_soon", node=0)
        mpsd.ask(calls.lease_release(lease.id))
    assert "no room for 30 % of the SMs of GPU 0 within 0.5 s" in said


def test_without_mpsd_a_task_fails_and_computes_nothing(nodes: Ray) -> None:
    machine = nodes.machines[1]
    machine.kill_daemon()
    plain = [kind for kind in machine.kinds().values() if kind == "plain"]
    said = nodes.error("run_task", node=1)
    assert "ShareError: mpsd at " in said
    assert "does not give 30 % of the SMs of GPU 0: " in said
    assert [kind for kind in machine.kinds().values() if kind == "plain"] == plain
    machine.start()
    wait_for("mpsd to serve", lambda: nodes.run("run_task", node=1)[0] == 38)


ACTOR = """\
import os
import ray
from count_starts import adopt_or_create
from mpsd_client.ray import share
from gpu import sms

@ray.remote(num_gpus=0.5, max_restarts=-1, max_task_retries=-1)
@share(memory=4 << 30)
class Counter:
    def __init__(self, name):
        self.arena = adopt_or_create(name)             # GPU memory that outlives the process
        self.number = self.arena["starts"]

    def add(self):
        number = int.from_bytes(self.number.tobytes(), "little") + 1
        self.number.frombytes(number.to_bytes(8, "little"))
        return f"{number}, with {sms()} SMs, in process {os.getpid()}"
"""
ADD = """\
import ray
from counter import Counter

ray.init(namespace="demo", log_to_driver=False)
ways = {"name": "counter", "get_if_exists": True, "lifetime": "detached", "resources": {"node-0": 0.001}}
counter = Counter.options(**ways).remote("numbers")
print(ray.get(counter.add.remote()))
"""
COUNT = """\
import ray
from gpu import sms
from mpsd_client.ray import share

@ray.remote(num_gpus=0.3)
@share()
def count():
    return f"{sms()} SMs"

ray.init(log_to_driver=False)
try:
    print(ray.get([count.remote() for number in range(3)]))
except ray.exceptions.RayTaskError as error:
    print(error.cause)
"""


def test_the_session_of_a_first_user(nodes: Ray, tmp_path: Path) -> None:
    """On the first node alone, so that the words are the same each time."""
    for name, text in (("counter.py", ACTOR), ("add.py", ADD), ("count.py", COUNT)):
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "clients/python/examples/count_starts.py", tmp_path)
    shutil.copy(Path(__file__).with_name("ray_scenes.py"), tmp_path / "gpu.py")
    machine, transcript = nodes.machines[0], Transcript("ray")

    def user(typed: str) -> str:
        program = typed.removeprefix("python ")
        if program == typed:  # cat
            output = (tmp_path / typed.split()[-1]).read_text()
        else:
            output = str(nodes.run("run_program", path=str(tmp_path / program)))
        for each in nodes.machines:
            output = output.replace(str(each.pipe), "/run/nvidia-mps")
        transcript.add("user$", typed, output)
        return output

    def root(typed: str) -> None:
        words = [str(Path(sys.executable).with_name("mpsctl")), *typed.split()[1:]]
        done = subprocess.run(words, env=machine.variables, capture_output=True, text=True, check=False)
        transcript.add("root#", typed, done.stdout + done.stderr)

    user("cat counter.py")
    user("cat add.py")
    said = user("python add.py")
    root("mpsctl leases")
    os.kill(int(re.findall(r"process (\d+)", said)[0]), signal.SIGKILL)
    transcript.add("root#", f"kill -9 {re.findall(r'process ([0-9]+)', said)[0]}", "")
    user("python add.py")
    user("cat count.py")
    user("python count.py")
    for each in nodes.machines:
        each.kill_daemon()
    transcript.add("root#", "pkill -9 -f nvidia-cuda-mps-control", "")
    said = user("python count.py")
    assert "does not give 30 % of the SMs" in said
    for each in nodes.machines:
        each.start()
    transcript.check()


def test_an_actor_whose_node_is_lost_goes_on_elsewhere_from_the_newest_image(nodes: Ray) -> None:
    """The last test: the second node and all its processes end, as at a loss of power, its images too."""
    node, before = nodes.machines[1], nodes.run("see", node=0)  # of the actor that the first user left
    said = nodes.run("make_standby", name="standby", node=1, every=0.5)
    assert (said["number"], said["begun_from"]) == (1, "nothing")
    made: list[float] = []  # when each number was complete
    images: list[str] = []  # those that arrived on the first node

    def add() -> bool:
        said = nodes.run("add", name="standby")
        assert said["number"] == 2 + len(made), said
        made.append(time.time())
        if said["arrived"] not in ("", *images):
            images.append(said["arrived"])
        return len(images) == 2

    wait_for("two images on the other node", add, 90.0)
    node.end_processes()
    shutil.rmtree(node.place / "images")  # after its writers
    said = nodes.run("add_after_loss", name="standby")
    name, moment, milliseconds = said["begun_from"].split(".")
    assert name == "standby"
    assert said["begun_from"] >= images[-1]  # a newer one may have arrived that the actor did not come to tell of
    began = time.mktime(time.strptime(moment, "%Y%m%dT%H%M%S")) + int(milliseconds) / 1000  # the image, before its barrier
    kept = said["number"] - 1
    assert sum(each < began for each in made) + 1 <= kept <= len(made) + 1
    assert nodes.run("see", node=0) == [*before, ["Counter", 50.0]]
