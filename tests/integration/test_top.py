"""`mpsctl top` before a real daemon: by the toolkit's own pilot, and on a terminal of tmux."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from mpsctl.output import Output
from mpsctl.session import Session
from mpsctl.surroundings import Surroundings, user_name
from mpsctl.top import feed
from mpsctl.top.app import Top
from mpsctl.top.views import VIEWS, prepare
from mpsd_client import Client as Mpsd
from mpsd_client import Selector, calls
from textual.pilot import Pilot

from tests.integration.machine import UIDS, Machine
from tests.integration.process import EVENT_SECONDS, stop_idle, wait_for

pytestmark = pytest.mark.root  # the daemon of an ordinary user grants nothing, and has no other users

Screen = Pilot[Exception | None]
NUMBERS = {view.name: str(at + 1) for at, view in enumerate(VIEWS)}


def use(machine: Machine, steps: Callable[[Screen], Awaitable[None]], uid: int | None = None) -> Top:
    """Start the program as that user, 80 columns wide and 24 lines high, and take the steps."""
    from mpsctl.program import connect

    def as_user(path: str | None) -> Mpsd:
        return connect(path) if uid is None else machine.connect(uid)

    _, asked = prepare("top", None)
    asked.socket = str(machine.pipe / "mpsd.sock")
    out = Output(Surroundings(StringIO(), StringIO(), {}, time.time, user_name), is_json=False)
    app = Top(Session(asked, out, as_user))

    async def run() -> None:
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await steps(pilot)

    asyncio.run(run())
    return app


def text(pilot: Screen) -> str:
    """What the screen shows."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Screen, what: str, look: Callable[[], object]) -> None:
    end = time.monotonic() + EVENT_SECONDS
    while not look():
        assert time.monotonic() < end, f"waited {EVENT_SECONDS:g} s for {what}:\n{text(pilot)}"
        await pilot.pause(0.01)


async def see(pilot: Screen, *wanted: str) -> None:
    await until(pilot, str(wanted), lambda: all(each in text(pilot) for each in wanted))


async def see_no(pilot: Screen, unwanted: str) -> None:
    await until(pilot, f"the end of {unwanted}", lambda: unwanted not in text(pilot))


def test_it_shows_finds_explains_and_stops_clients(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second passes here: mpsd is asked again after events alone."""
    monkeypatch.setattr(feed, "REFRESH_SECONDS", 3600.0)
    machine.start()
    first = machine.counter().ready()
    wait_for("it to be listed", lambda: machine.clients() == {first.pid})

    async def steps(pilot: Screen) -> None:
        await see(pilot, f"{first.pid} ", "running", "▒▒▒▒▒▒ 100%", "GPU 0 SM", "x Stop", "/ Filter")
        second = machine.counter()
        await see(pilot, f"{second.pid} ")
        await pilot.press("slash", *str(second.pid))
        await see_no(pilot, f"{first.pid} ")
        await pilot.press("enter", "enter")
        await see(pilot, f"mpsctl why {second.pid}", "rule")
        await pilot.press("escape", "x")
        await see(pilot, f"mpsctl stop --pid {second.pid} --start-time")
        await pilot.press("n", "x", "y")
        await until(pilot, "its end", second.has_ended)
        await see(pilot, "ENDED")
        await pilot.press("escape", "escape")
        await see(pilot, f"{first.pid} ")
        assert not first.has_ended()

    use(machine, steps)


def test_each_view_is_that_of_a_command(shared: Machine) -> None:
    with shared.mpsd() as mpsd:
        for sm in (30.0, 5.0):
            mpsd.ask(calls.lease_create(f"job-{sm:g}", Selector.of_token(f"a-secret-token-{sm:g}"), sm_percent=sm))
        mpsd.ask(calls.arena_create("weights", "0", 1 << 30))

    async def steps(pilot: Screen) -> None:
        await pilot.press(NUMBERS["domains"])
        await see(pilot, "default", "ready", "d Drain")
        await pilot.press(NUMBERS["leases"], "s", "s", "s", "s", "s")
        await see(pilot, "SM▲", "job-30")
        assert text(pilot).index("job-5 ") < text(pilot).index("job-30 ")
        await pilot.press("r")
        await see(pilot, "SM▼")
        assert text(pilot).index("job-5 ") > text(pilot).index("job-30 ")
        await pilot.press("f", *"job-5", "enter", "enter")
        await see(pilot, "mpsctl lease show", "name", "job-5", "until it is released")
        await pilot.press("escape", NUMBERS["arenas"])
        await see(pilot, "weights", "1G")
        for name, wanted in (("queue", "no one waits"), ("services", "no services"), ("faults", "no faults"),
                             ("blame", "no client is in quarantine"), ("GPUs", "NVML")):  # fmt: skip
            await pilot.press(NUMBERS[name])
            await see(pilot, wanted)
        await pilot.press("question_mark")
        await see(pilot, "used comes from NVML")

    use(shared, steps)


@pytest.mark.slow
def test_a_frame_or_tick_while_it_ends_is_nothing(shared: Machine) -> None:
    """The widgets are gone before the timer and the feed are."""

    async def steps(pilot: Screen) -> None:
        app = pilot.app
        assert isinstance(app, Top)
        await until(pilot, "a frame", lambda: app._frame)
        await app.screen.query("*").remove()
        app._draw()
        app._draw_note()

    use(shared, steps)


def test_a_fault_is_explained_and_its_culprit_pardoned(machine: Machine) -> None:
    """The fault appears in the open view; a domain is drained after its question too."""
    machine.start()

    async def steps(pilot: Screen) -> None:
        await see(pilot, "no clients")
        await pilot.press(NUMBERS["faults"])
        await see(pilot, "no faults")
        culprit = machine.client("faulter", "oob_write", "--after", "0.3")
        await see(pilot, "mmu", f"faulter[{culprit.pid}]", "proven")
        await pilot.press("enter")
        await see(pilot, "mpsctl fault 1", "proven by uvm_events")
        await pilot.press("escape", NUMBERS["blame"])
        await see(pilot, "convicted", "user:0:faulter")
        await pilot.press("p")
        await see(pilot, "mpsctl pardon user:0:faulter")
        await pilot.press("y")
        await see(pilot, "no client is in quarantine")
        await pilot.press(NUMBERS["domains"])
        await see(pilot, "SERVERS", "default")
        await pilot.press("d", "y")
        await see(pilot, "domain default takes no")

    use(machine, steps)


def test_a_user_sees_and_does_what_is_theirs(shared: Machine) -> None:
    own, other = (shared.counter(uid=uid).ready() for uid in UIDS)

    async def steps(pilot: Screen) -> None:
        await see(pilot, f"{own.pid} ")
        assert f"{other.pid} " not in text(pilot)
        await pilot.press(NUMBERS["domains"])
        await see(pilot, "SERVERS", "default")
        await pilot.press("d")
        await see(pilot, "you may not: mpsctl")
        await pilot.press(NUMBERS["blame"])
        await see(pilot, "operator")

    use(shared, steps, uid=UIDS[0])


@pytest.mark.slow
def test_a_silent_mpsd_leaves_no_blank_screen_and_a_new_one_is_followed(machine: Machine) -> None:
    machine.start()

    async def steps(pilot: Screen) -> None:
        await see(pilot, "waiting for mpsd", "1 clients", "q Quit", "mpsd has not answered for")
        os.kill(machine.daemon_pid(), signal.SIGCONT)
        await see(pilot, "running", "no clients")
        machine.kill_daemon()
        await see(pilot, "trying again", "s old")
        machine.start()
        client = machine.counter()
        await see(pilot, f"{client.pid} ", "running")
        assert "trying again" not in text(pilot)
        await pilot.press("ctrl+c")

    stop_idle(machine.daemon_pid())
    assert use(machine, steps).return_code == 130


@contextmanager
def terminal(machine: Machine, **variables: str) -> Iterator[Callable[..., str]]:
    """`mpsctl top` on a terminal of 80 columns and 24 lines, with another size in its environment; yields a function that runs
    a command of tmux."""
    if not shutil.which("tmux"):
        pytest.skip("no tmux here")
    given = machine.variables | variables | {"LC_ALL": "C.UTF-8", "LINES": "50", "COLUMNS": "200"}
    words = ["env", *(f"{name}={value}" for name, value in given.items()), sys.executable, "-m", "mpsctl", "top"]

    def tmux(*args: str) -> str:
        command = ["tmux", "-u", "-S", str(machine.place / "tmux"), "-f", "/dev/null", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    tmux("new-session", "-d", "-x", "80", "-y", "24", f"{shlex.join(words)}; echo status $?; sleep 600")
    try:
        yield tmux
    finally:
        tmux("kill-server")


@pytest.mark.slow
@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_shows_the_memory_of_each_client(machine: Machine, no_colour: str) -> None:
    """With NVML, which the pilot's process cannot reach; and leaves the terminal as it was."""
    machine.start()
    client = machine.counter().ready()
    with terminal(machine, **({"NO_COLOR": no_colour} if no_colour else {})) as tmux:
        row = re.compile(rf"{client.pid} .* ▒▒▒▒▒▒ 100% +█····· [0-9.]+M/all +running")
        wait_for("the client's row", lambda: row.search(tmux("capture-pane", "-p")))
        lines = tmux("capture-pane", "-p").splitlines()
        assert max(map(len, lines)) <= 80
        assert "1 clients 2 domains" in lines[2]
        assert "q Quit" in lines[23]
        assert re.search(r"GPU 0 SM .* - busy .* MEM █", lines[1]), "the simulator's NVML reports no load"
        colours = set(re.findall(r"38;2;(\d+);(\d+);(\d+)m|38;5;(\d+)m", tmux("capture-pane", "-p", "-e")))
        assert all(red == green == blue for red, green, blue, _ in colours if red) or not no_colour
        tmux("send-keys", "q")
        wait_for("its end", lambda: "status 0" in tmux("capture-pane", "-p"))
        assert "GPU 0" not in tmux("capture-pane", "-p")


def test_no_other_command_loads_the_toolkit(shared: Machine) -> None:
    code = "import sys; from mpsctl.__main__ import run; sys.exit(run() or ('textual' in sys.modules) * 9)"
    done = shared.run("-c", code, "top", "--once", program=Path(sys.executable))
    assert (done.returncode, done.stderr) == (0, ""), done
