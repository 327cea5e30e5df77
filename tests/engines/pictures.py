"""The pictures in docs/pictures: what `mpsctl top`, the live page and `make run` show, of a real daemon on the simulator.

make pictures          as root; needs tmux, chromium and chromium-driver
"""

import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from mpsd_client import Selector, calls
from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.engines.browser import Browser, missing, open_browser
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

PICTURES = ROOT / "docs/pictures"
TOKEN = "a-token-for-pictures"
ALICE, BOB = 1001, 1002
SECONDS = 120.0
COLOURS = 200
PAGE = """<meta charset=utf-8><style>body {{ margin: 0; background: #0c0c0c }} pre {{ margin: 0; padding: 12px;
width: fit-content; font: 15px/1.2 'DejaVu Sans Mono', monospace; color: #d9d9d9 }}</style><pre>{code}</pre>"""
EXTENT = "const box = document.querySelector('pre').getBoundingClientRect(); return [box.width, box.height]"


class Terminal:
    """A terminal of tmux with one program."""

    def __init__(self, place: Path, columns: int, lines: int, *words: str, **variables: str) -> None:
        self._socket = str(place / "tmux")
        given = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8", **variables}
        command = shlex.join(["env", *(f"{name}={value}" for name, value in given.items()), *words])
        self.run("new-session", "-d", "-x", str(columns), "-y", str(lines), f"{command}; sleep 600")

    def run(self, *words: str) -> str:
        command = ["tmux", "-u", "-f", "/dev/null", "-S", self._socket, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    def see(self, *wanted: str) -> None:
        try:
            wait_for("it", lambda: all(each in self.run("capture-pane", "-p") for each in wanted), SECONDS)
        except AssertionError:
            raise AssertionError(f"{wanted} did not appear on the terminal:\n{self.run('capture-pane', '-p')}") from None

    def draw(self, browser: Browser, path: Path) -> None:
        """Write the screen as PNG."""
        console = Console(record=True, file=StringIO(), width=200, color_system="truecolor", force_terminal=True)
        console.print(Text.from_ansi(self.run("capture-pane", "-p", "-e", "-N").rstrip("\n")))
        html = console.export_html(theme=MONOKAI, inline_styles=True, code_format=PAGE)
        with TemporaryDirectory() as place:
            file = Path(place) / "screen.html"
            file.write_text(html)
            browser.open(file.as_uri())
            browser.resize(*map(int, browser.run(EXTENT)))
            write(path, browser.picture())

    def close(self) -> None:
        self.run("kill-server")


def write(path: Path, picture: bytes) -> None:
    """Write the picture with few colours: it is text, and a repository keeps each version."""
    Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)


@contextmanager
def scene() -> Iterator[tuple[Machine, str]]:
    """Two users with leases, a service with a standby, and a fault; yields the address of the page too."""
    with open_machine() as machine, socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        server.close()
        token = machine.place / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        machine.configure(f'[metrics]\nlisten = "{address}"\ntoken_file = "{token}"\n')
        machine.start()
        with machine.mpsd() as mpsd:
            for name, uid, sm, size in (("training", ALICE, 40.0, 40 << 30), ("notebook", BOB, 25.0, 16 << 30)):
                whose = Selector.of_uid(uid)
                mpsd.ask(calls.lease_create(name, whose, sm_percent=sm, memory_bytes={"0": size}, processes=2))
        machine.counter(uid=BOB).ready()
        machine.client("faulter", "oob_write", "--after", "0.3", uid=BOB).wait("result")
        for uid in (ALICE, ALICE, BOB):
            machine.counter(uid=uid).ready()
        count = ("-u", str(ROOT / "clients/python/examples/count_service.py"), "--pace", "0.1", "--steps", "100000")
        words = ("-m", "mpsctl", "service", "run", "count", "--standbys", "1", "--", sys.executable, *count)
        starter = subprocess.Popen(
            [sys.executable, *words], env=machine.variables, cwd="/", stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            wait_for("the service", lambda: _is_ready(machine), SECONDS)
            yield machine, f"http://{address}/"
        finally:
            starter.terminate()
            starter.wait(SECONDS)


def _is_ready(machine: Machine) -> bool:
    with machine.mpsd() as mpsd:
        found = mpsd.ask(calls.service_list()).items
        return any(member.standing == "ready" and not member.is_writer for each in found for member in each.members)


def draw_top(machine: Machine, browser: Browser, directory: Path) -> None:
    terminal = Terminal(machine.place, 80, 18, sys.executable, "-m", "mpsctl", "top", **machine.variables)
    try:
        terminal.see("q Quit", "running", "busy", "M/20G", "▁▁▁")
        terminal.draw(browser, directory / "top.png")
    finally:
        terminal.close()


def draw_page(url: str, browser: Browser, directory: Path) -> None:
    browser.resize(1280, 900)
    browser.open(url)
    browser.see("settled")
    browser.run("document.querySelector('details').open = true; document.querySelector('input').focus()")
    browser.press(*TOKEN, "\ue007")
    browser.see("Blame", "training")
    browser.run("document.querySelector('details').open = false; document.querySelector('#faults table button').click()")
    browser.see("Evidence", "uvm_events")
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    write(directory / "page.png", browser.picture(is_whole=False))
    browser.resize(360, 740)
    write(directory / "page-phone.png", browser.picture(is_whole=False))


def draw_run(browser: Browser, directory: Path) -> None:
    """Draw the end of `make run`: the second act, and the comparison."""
    with TemporaryDirectory(prefix="mpsd-") as place:
        terminal = Terminal(Path(place), 84, 32, sys.executable, str(ROOT / "clients/demo/two_tenants.py"), "--backend", "sim")
        try:
            terminal.see("docs/operating.md")
            terminal.draw(browser, directory / "run.png")
        finally:
            terminal.close()


def main(directory: Path = PICTURES) -> None:
    if why := missing() or ("" if shutil.which("tmux") else "not installed: tmux"):
        sys.exit(f"make pictures: {why}")
    directory.mkdir(exist_ok=True)
    with open_browser() as browser:
        with scene() as (machine, url):
            draw_top(machine, browser, directory)
            draw_page(url, browser, directory)
        draw_run(browser, directory)


if __name__ == "__main__":
    main()
