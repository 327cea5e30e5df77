"""The live page of a real daemon in a real browser: who sees what, a fault, the width of a phone, the end of the daemon."""

import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from tests.engines.browser import Browser, missing, open_browser
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
TOKEN = "a-token-of-this-test"
NASTY = "<img src=x onerror=alert(1)>'\"&"
WIDTHS = (360, 1280, 1920)
LINES = """
return [...document.querySelectorAll('#fault span')].filter(each => each.textContent === 'uvm_events').map(each => each.getClientRects().length)
"""  # noqa: E501
SMALLEST = """
const sizes = [...document.querySelectorAll('.picture *')].map(each => parseFloat(getComputedStyle(each).fontSize));
return Math.min(...sizes)
"""
HIDDEN = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def page(programs: None) -> Iterator[tuple[Machine, str]]:
    """A daemon with the page at a loopback address. The port was free a moment ago."""
    with open_machine() as machine:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        token = machine.place / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        machine.configure(f'[metrics]\nlisten = "{address}"\ntoken_file = "{token}"\n')
        machine.start()
        wait_for("the page", lambda: machine.journal("metrics.listening"))
        yield machine, f"http://{address}/"


@pytest.fixture
def browser() -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    with open_browser() as made:
        yield made


def fetch(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_fault_appears_with_its_evidence(page: tuple[Machine, str], browser: Browser) -> None:
    """Without a reload, and by keyboard alone; nothing of the page is refused by its own policy."""
    machine, url = page
    innocent = machine.counter().ready()
    browser.open(url)
    browser.see("running", "clients: 1", "Fault domains", "default", "what every user may read", "No fault.")
    culprit = machine.client("faulter", "oob_write", "--after", "0.3", "--linger", "60")
    culprit.wait("result")
    browser.see("mmu", "settled")
    assert "a client of another user" in browser.text()
    assert "faulter" not in browser.text()
    give(browser, TOKEN)
    browser.see("Clients", "Blame", "faulter", "proven", "convicted")
    browser.run("document.querySelector('#faults table button').focus()")
    browser.press("\ue007")
    browser.see("Evidence", "uvm_events", "kernel_log", f"faulter[{culprit.pid}]", f"counter[{innocent.pid}]", "0x")
    assert browser.run("return document.activeElement.dataset.key") == "Fault 1"
    assert "Fault 1" in browser.run("return document.querySelector('[role=log]').textContent")
    for width in WIDTHS:
        browser.resize(width)
        assert browser.run(HIDDEN) <= 0, f"wider than {width} pixels"
        assert set(browser.run(LINES)) == {1}, "a word on two lines"
    assert browser.complaints() == []


def test_the_report_of_a_fault_is_readable_on_a_phone(page: tuple[Machine, str], browser: Browser) -> None:
    machine, _ = page
    machine.client("faulter", "oob_write", "--after", "0.3").wait("result")
    report = machine.place / "fault.html"
    words = ("-m", "mpsctl", "fault", "1", "--html", str(report))
    wait_for("the report", lambda: machine.run(*words, program=Path(sys.executable)).returncode == 0)
    browser.open(report.as_uri())
    for width in WIDTHS:
        browser.resize(width)
        browser.see("Fault 1", "uvm_events")
        assert browser.run(HIDDEN) <= 0, f"wider than {width} pixels"
        assert browser.run(SMALLEST) >= 12


def give(browser: Browser, token: str) -> None:
    browser.run("document.querySelector('details').open = true; document.querySelector('input').focus()")
    browser.press(*token, "\ue007")


def test_names_of_users_are_text(page: tuple[Machine, str], browser: Browser) -> None:
    machine, url = page
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create(NASTY, Selector.of_uid(1000), sm_percent=10))
    browser.open(url)
    browser.see("Fault domains")
    give(browser, TOKEN)
    browser.see(NASTY)
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []


def test_the_end_of_the_daemon_is_shown_and_the_next_one_followed(page: tuple[Machine, str], browser: Browser) -> None:
    machine, url = page
    browser.open(url)
    browser.see("running", "default")
    machine.kill_daemon()
    browser.see("mpsd does not answer; what is shown is from", "default")
    assert browser.run("return document.querySelector('[role=alert]').textContent") != ""
    machine.start()
    wait_for("its return", lambda: "does not answer" not in browser.text())
    browser.see("running", "default")


def test_who_reads_what(page: tuple[Machine, str]) -> None:
    """No browser is needed for that."""
    machine, url = page
    machine.counter().ready()
    status, body = fetch(url + "state")
    assert status == 200
    assert not {"clients", "leases", "queue", "services", "arenas", "blame"} & set(json.loads(body))
    assert fetch(url + "state", Authorization="Bearer another-token-of-16")[0] == 401
    shown = json.loads(fetch(url + "state", Authorization=f"Bearer {TOKEN}")[1])
    assert len(shown["clients"]["items"]) == 1
    assert fetch(url + "state", Host="evil.example")[0] == 403
    assert fetch(url + "state", Host="localhost:9402")[0] == 200
    assert fetch(url + "fault?99")[0] == 404
    assert fetch(url + "fault?-1")[0] == 400
