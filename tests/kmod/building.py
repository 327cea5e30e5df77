"""The modules that the guest loads, built in a distribution's root by kmod/build, as an operator would.

    nvidia.ko           a stand-in: exports what nvidia-uvm takes, declared by the driver's own header, so that the symbol
                        versions agree and the kernel loads it unforced; there is no GPU behind it
    nvidia-uvm.ko       what kmod/build makes
    nvidia-uvm-test.ko  the same with kmod/test in it: the sink can be driven on a GPU that UVM's own tests make up
"""

import difflib
import hashlib
import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kmod.distributions import SOURCE_TARBALL, Root, cache_directory, once

CHECKOUT = Path(__file__).resolve().parents[2]
KMOD = CHECKOUT / "kmod"
TREE = "modules/nvidia-open-kernel"  # in the tarball
REBUILT_BY = ("apply", "hooks.cocci", "tree.sh", "uvm_mpsd.Kbuild")  # what these did to a tree is not undone: a new tree
AT_LOAD = ("RegisterUvmCallbacks", "RegisterUvmEvents", "SessionCreate", "SessionDestroy")  # these succeed, as with no GPU
BUILDS_KEPT = 6  # of each distribution; 6 MB each

STAND_IN = """\
#define __NO_VERSION__
#include "os-interface.h"
#include "nv-linux.h"
#include "nv_uvm_interface.h"
#include "nv_gpu_ops.h"
#include "rm-gpu-ops.h"

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("a stand-in for tests: no GPU, no RM");

int mpsd_succeeds(void);
int mpsd_succeeds(void) { return NV_OK; }
int mpsd_refuses(void);
int mpsd_refuses(void) { return NV_ERR_NOT_SUPPORTED; }
"""
STAND_IN_KBUILD = """
ifneq ($(MPSD_STAND_IN),)
obj-m := nvidia.o
nvidia-y := nvidia/mpsd_stand_in.o
endif
"""


@dataclass(frozen=True, slots=True)
class Build:
    """What is in the cache for one root and one state of kmod/.

    seconds: what making it took, when it was made.  calls, inserted: of ours in upstream's files, and lines altogether.
    """

    directory: Path
    kernel_image: Path
    kernel: str
    driver: str
    seconds: float
    calls: int
    inserted: int

    @property
    def log(self) -> str:
        return (self.directory / "build.log").read_text(errors="replace")


def state_of(*places: Path) -> str:
    """A hash of files and of what is below folders, with their names; prose left out."""
    digest = hashlib.sha256()
    for place in places:
        below = sorted(each for each in place.rglob("*") if each.is_file() and each.suffix != ".md")
        for file in [place] if place.is_file() else below:
            digest.update(f"{file.relative_to(place.parent)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build_in(root: Root) -> Build:
    """The build of kmod/ as it is now; from the cache if it was built before."""
    state = state_of(KMOD, Path(__file__))
    place = cache_directory() / "builds" / f"{root.path.name}-{state}"
    once(place, lambda half: Builder(root, half).build())
    older = sorted(place.parent.glob(f"{root.path.name}-*"), key=lambda each: each.stat().st_mtime)
    for forgotten in older[:-BUILDS_KEPT]:
        shutil.rmtree(forgotten)
    facts = json.loads((place / "facts.json").read_text())
    return Build(place, root.kernel_image, root.kernel_release, **facts)


def export(name: str) -> str:
    """C that exports `name`, as an alias: its type, and so its version, is what the driver's header declares."""
    answer = "mpsd_succeeds" if name.removeprefix("nvUvmInterface") in AT_LOAD else "mpsd_refuses"
    return f'asm(".globl {name}\\n.set {name}, {answer}");\nEXPORT_SYMBOL({name});\n'


def teach_lock_orders(header: Path) -> None:
    """To lockdep, drivers before 550 have one lock of each kind; upstream's own order of locks is what it is to check."""
    told = "static struct lock_class_key keys[UVM_LOCK_ORDER_COUNT]; lockdep_set_class(&\\2, &keys[lock_order]);"
    made = r"\b((?:mutex_init|init_rwsem|spin_lock_init|rwlock_init)\(&(\w+->\w+)\);)"
    header.write_text(re.sub(made, rf"\1 {{ {told} }}", header.read_text()))


class Builder:
    """Builds once, into `target`.  Trees in the root are kept and built upon: a change of one file takes seconds."""

    def __init__(self, root: Root, target: Path) -> None:
        self.root = root
        self.target = target
        self.log = target / "build.log"
        self.work = root.path / "build"
        self.out = Path("/build") / f"out-{state_of(*(KMOD / each for each in REBUILT_BY))}"  # as it is called in the root

    def build(self) -> None:
        began = time.monotonic()
        self.work.mkdir(exist_ok=True)
        for tree in set(self.work.glob("out-*")) - {self.in_tree("")}:
            shutil.rmtree(tree)
        once(self.work / "source", self.unpack)
        self.copy_kmod()
        for pinned in ("mpsd_test.h", "uvm_mpsd_test.c"):  # a production build must not find them
            (self.in_tree("nvidia-uvm") / pinned).unlink(missing_ok=True)
        self.include_selftest(False)
        self.run_build()
        self.keep("nvidia-uvm.ko", "nvidia-uvm.ko")
        self.build_stand_in()
        for file in (KMOD / "test").glob("*.[ch]"):
            shutil.copy(file, self.in_tree("nvidia-uvm") / file.name)
        self.include_selftest(True)
        self.run_build()
        self.keep("nvidia-uvm.ko", "nvidia-uvm-test.ko")
        self.write_facts(time.monotonic() - began)

    def unpack(self, half: Path) -> None:
        subprocess.run(["tar", "-C", str(half), "-xf", str(self.root.path / SOURCE_TARBALL)], check=True)
        if self.root.distribution.is_debug:
            teach_lock_orders(half / TREE / "nvidia-uvm/uvm_lock.h")

    def copy_kmod(self) -> None:
        """Into the root; a file that did not change stays as old as it is, since kmod/build compares ages."""
        there = self.work / "kmod"
        for old in [each for each in there.rglob("*") if each.is_file() and not (KMOD / each.relative_to(there)).exists()]:
            old.unlink()
        for file in [each for each in KMOD.rglob("*") if each.is_file()]:
            copy = there / file.relative_to(KMOD)
            if not copy.exists() or copy.read_bytes() != file.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)

    def in_tree(self, path: str) -> Path:
        return self.root.path / str(self.out)[1:] / path

    def run_build(self) -> None:
        self.root.run(
            "nice", "-n", "19", "/build/kmod/build", "--out", str(self.out), f"/build/source/{TREE}", self.root.kernel_release,
            log=self.log,
        )  # fmt: skip

    def include_selftest(self, is_wanted: bool) -> None:
        """The list of sources, with the self test's part at its end or without."""
        sources = self.in_tree("nvidia-uvm/nvidia-uvm-sources.Kbuild")
        if not sources.exists():
            return
        added = (KMOD / "test/mpsd_test.Kbuild").read_text()
        text = sources.read_text().replace(added, "")
        sources.write_text(text + added if is_wanted else text)

    def keep(self, made: str, name: str) -> None:
        """Without debugging information, which is nine tenths of it."""
        self.root.run("strip", "--strip-debug", "-o", "/build/stripped.ko", str(self.out / made), log=self.log)
        shutil.move(self.work / "stripped.ko", self.target / name)

    def build_stand_in(self) -> None:
        unresolved = subprocess.run(
            ["chroot", self.root.path, "nm", "-u", self.out / "nvidia-uvm.ko"], capture_output=True, text=True, check=True
        ).stdout
        names = sorted(set(re.findall(r"\bnvUvm\w+", unresolved)))
        self.in_tree("nvidia/mpsd_stand_in.c").write_text(STAND_IN + "".join(map(export, names)))
        kbuild = self.in_tree("Kbuild")
        if STAND_IN_KBUILD not in kbuild.read_text():
            kbuild.write_text(kbuild.read_text() + STAND_IN_KBUILD)
        release = self.root.kernel_release
        headers = f"/lib/modules/{release}/build"
        sources = f"/lib/modules/{release}/source"  # Debian's are apart; a compiled kernel's are where its headers are
        has_sources = (self.root.path / sources[1:]).is_symlink()
        self.root.run(
            "make", "-C", str(self.out), "modules", "NV_KERNEL_MODULES=nvidia nvidia-uvm", "MPSD_STAND_IN=1",
            "IGNORE_CC_MISMATCH=1", f"KERNEL_UNAME={release}", f"SYSOUT={self.inside(headers)}",
            f"SYSSRC={self.inside(sources if has_sources else headers)}", log=self.log,
        )  # fmt: skip
        self.keep("nvidia.ko", "nvidia.ko")

    def inside(self, path: str) -> str:
        return subprocess.run(
            ["chroot", self.root.path, "readlink", "-f", path], capture_output=True, text=True, check=True
        ).stdout.strip()

    def write_facts(self, seconds: float) -> None:
        version = re.search(r'NV_VERSION_STRING=\\"([0-9.]+)', self.in_tree("Kbuild").read_text())
        assert version, "the tree does not say its version"
        lines = self.inserted_lines()
        calls = sum(len(re.findall(r"\buvm_mpsd_\w+\(", line)) for line in lines)
        facts = {"driver": version[1], "seconds": round(seconds, 1), "calls": calls, "inserted": len(lines)}
        (self.target / "facts.json").write_text(json.dumps(facts))

    def inserted_lines(self) -> list[str]:
        """What upstream's own files have now and did not have, but for the self test's part."""
        self.include_selftest(False)
        found = []
        for file in (self.in_tree("nvidia-uvm") / ".before-mpsd").iterdir():
            before, after = (path.read_text().splitlines() for path in (file, self.in_tree("nvidia-uvm") / file.name))
            found += [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
        return found
