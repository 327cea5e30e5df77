"""The page about the simulator lists its knobs, fault modes, and verbs of the tool."""

import re
import subprocess

from tests.native.sim_fixtures import bare_machine, built_programs  # noqa: F401
from tests.native.sim_machine import CLIENTS, ROOT, Machine

PAGE = (ROOT / "docs/simulator.md").read_text()
SOURCES = "".join(path.read_text() for path in (ROOT / "native/sim").glob("*/*.c"))


def test_every_knob_is_on_the_page_and_in_the_source() -> None:
    in_source = set(re.findall(r'"(MPSD_SIM_[A-Z_]+)"', SOURCES))
    in_page = set(re.findall(r"^\| `(MPSD_SIM_[A-Z_]+)` \|", PAGE, re.MULTILINE))
    assert in_source == in_page


def test_every_fault_mode_is_on_the_page(machine: Machine) -> None:
    command = [CLIENTS / "faulter", "--list"]
    lines = subprocess.run(
        command, env=machine.library_environment(), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    modes = [line.split()[0] for line in lines]
    assert {line.split()[1] for line in lines} == {"mmu", "sm", "host", "none"}
    assert [mode for mode in modes if mode != "hang" and f"`{mode}`" not in PAGE] == []


def test_every_verb_of_the_tool_is_on_the_page(machine: Machine) -> None:
    verbs = re.findall(r"mpsd-sim ([a-z-]+)", machine.tool("--help"))
    assert [verb for verb in verbs if f"| `{verb}" not in PAGE] == []


def test_every_function_of_the_driver_is_on_the_page() -> None:
    library = ROOT / "native/sim/lib/libcuda.so.1"
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = {re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", line.split()[-1]) for line in table.splitlines()}
    _, _, section = PAGE.partition("## The driver's functions\n")
    on_page = set(re.findall(r"`(cu\w+)`", section.partition("\n| |")[2].partition("\n## ")[0]))
    assert on_page == {name for name in names if name.startswith("cu")}
    assert {name for name in names if not name.startswith("cu")} == set(
        re.findall(r"^\| `(mpsd_sim_\w+)\(", PAGE, re.MULTILINE)
    )
