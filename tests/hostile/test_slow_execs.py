"""A client's file that is open in mpsd while mpsd starts programs: its file server never answers when the file is closed.

The exec of a program closes it.  With Debian's Python 3.11 all of mpsd waited then, with every kernel.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.attacker import NOBODY

SECONDS = 60.0
HANG = (Path(__file__).parent / "guest" / "hang.py").read_text().rpartition("\nmain(")[0]
STARTS_PROGRAMS = (
    HANG
    + """
import trio
from pathlib import Path
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.program_run import run_program
from mpsd.host.programs import native_directory
from mpsd.keeper.process import start_keeper

inspector = Inspector()
inspector.start()
processes.start_readers_by(inspector.start_reader)
try:
    device, place = mount(int(sys.argv[1]))
except OSError as exc:
    raise SystemExit(f"skip: {exc}")
server = os.fork()
if not server:
    sys.stdout = open(os.devnull, "w")
    serve(device)
os.close(device)
path = os.open(place, os.O_PATH)
file = os.open("file", os.O_RDONLY, dir_fd=path)
print("open", flush=True)
print(trio.run(run_program, inspector, ["/bin/echo", "a program"], b"", {})[1].decode(), end="", flush=True)
keeper = start_keeper(inspector, native_directory() / "keeper" / "mpsd-keeper", Path(sys.argv[2]), 4)
print("a keeper", flush=True)
processes.reader.stat(os.getpid())
os.kill(processes.reader.pid, 9)
processes.reader._process.has_ended(30)
print(processes.reader.stat(os.getpid()).split()[0].decode() == str(os.getpid()), flush=True)
keeper.kill()
os.kill(server, 9)
"""
)


def test_no_program_waits_for_a_clients_file(tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK):
        pytest.skip("no FUSE here")
    command = ["unshare", "--mount", sys.executable, "-c", STARTS_PROGRAMS, str(NOBODY), str(tmp_path / "keeper")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said.startswith("skip: "):
            pytest.skip(f"FUSE cannot be mounted here: {said}")
        assert said == "open\n"
        assert process.communicate(timeout=SECONDS)[0] == "a program\na keeper\nTrue\n"
    finally:
        os.killpg(process.pid, 9)
        process.wait()
