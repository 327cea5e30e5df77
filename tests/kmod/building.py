"""The modules that the guest loads, built in a distribution's root by kmod/build, as an operator would.

nvidia.ko           a stand-in: exports the symbols that nvidia-uvm needs, declared by the driver's own header, so that the
                    symbol versions agree and the kernel loads it unforced; no GPU is behind it
nvidia-uvm.ko       the result of kmod/build
nvidia-uvm-test.ko  the same with kmod/test in it: it can drive the sink on a GPU that UVM's own tests simulate
"""

import hashlib
import json
import re
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kmod.applying import KMOD, applied_to
from tests.kmod.cases import Case
from tests.kmod.distributions import Root, cache_directory, once

APPLIED_BY = ("apply", "hooks.cocci")  # what these did to a tree is undone when they change, and done again
AT_LOAD = ("RegisterUvmCallbacks", "RegisterUvmEvents", "SessionCreate", "SessionDestroy")  # these succeed, as without a GPU
BUILDS_KEPT = 6  # of each case; 6 MB each

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
    """The cached build of one case and one state of kmod/.

    seconds: the time of the build. calls, inserted: our calls in upstream's files, and all our lines there.
    """

    directory: Path
    kernel_image: Path
    kernel: str
    driver: str
    seconds: float
    calls: int
    inserted: int

    @property
    def warnings(self) -> list[str]:
        """Return the compiler's warnings about our files."""
        return [line for line in self.log.splitlines() if "mpsd" in line and re.search(r"\b(warning|error):", line)]

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


def build_in(root: Root, case: Case) -> Build:
    """The build of kmod/ as it is now; from the cache if it was built before.  Raises Unavailable."""
    state = state_of(KMOD, Path(__file__))
    archive = case.archive()
    place = cache_directory() / "builds" / f"{root.path.name}-{case.driver.strip('.')}-{state}"
    once(place, lambda half: Builder(root, archive, half).build())
    older = sorted(place.parent.glob(f"{place.name.removesuffix(state)}*"), key=lambda each: each.stat().st_mtime)
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
    if "lockdep_set_class" in header.read_text():
        return
    told = "static struct lock_class_key keys[UVM_LOCK_ORDER_COUNT]; lockdep_set_class(&\\2, &keys[lock_order]);"
    made = r"\b((?:mutex_init|init_rwsem|spin_lock_init|rwlock_init)\(&(\w+->\w+)\);)"
    header.write_text(re.sub(made, rf"\1 {{ {told} }}", header.read_text()))


class Builder:
    """Builds once, into `target`.  Trees in the root are kept and built upon: a change of one file takes seconds."""

    def __init__(self, root: Root, archive: Path, target: Path) -> None:
        self.root = root
        self.archive = archive
        self.target = target
        self.log = target / "build.log"
        self.inside_work = Path("/build") / archive.name.removesuffix(".tar.xz")  # as it is called in the root
        self.work = root.path / str(self.inside_work)[1:]
        self.out = self.inside_work / "out"

    def build(self) -> None:
        began = time.monotonic()
        self.work.mkdir(parents=True, exist_ok=True)
        once(self.work / "source", self.unpack)
        self.copy_kmod()
        self.remove_open_tree()
        self.undo_other_hooks()
        for file in [*self.in_tree("nvidia-uvm").glob("mpsd_test*"), *self.in_tree("nvidia-uvm").glob("uvm_mpsd_test*.[ch]")]:
            file.unlink()  # a production build must not find them
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
        subprocess.run(["tar", "-C", str(half), "-xf", str(self.archive)], check=True)
        if self.root.distribution.is_debug:
            (header,) = half.glob("**/nvidia-uvm/uvm_lock.h")
            teach_lock_orders(header)

    def tree(self) -> Path:
        """Where nvidia-uvm/ lies in the unpacked sources, as it is called in the root."""
        (found,) = (self.work / "source").glob("**/nvidia-uvm/uvm_lock.h")
        return Path("/") / found.parents[1].relative_to(self.root.path)

    def copy_kmod(self) -> None:
        """Into the root, as it is now."""
        there = self.work / "kmod"
        for old in [each for each in there.rglob("*") if each.is_file() and not (KMOD / each.relative_to(there)).exists()]:
            old.unlink()
        for file in [each for each in KMOD.rglob("*") if each.is_file()]:
            copy = there / file.relative_to(KMOD)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)

    def remove_open_tree(self) -> None:
        """Remove a tree that others may write to: earlier versions of kmod/build left such trees here, and it refuses them."""
        tree = self.in_tree("")
        if tree.exists() and tree.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            shutil.rmtree(tree)

    def undo_other_hooks(self) -> None:
        """Most of a tree does not depend on them, and its checks of the kernel take as long as its compilation."""
        stamp, state = self.work / "applied", state_of(*(KMOD / each for each in APPLIED_BY))
        if stamp.exists() and stamp.read_text() != state and (self.in_tree("nvidia-uvm") / ".before-mpsd").exists():
            self.root.run(str(self.inside_work / "kmod/apply"), "--remove", str(self.out), log=self.log)
        stamp.write_text(state)

    def in_tree(self, path: str) -> Path:
        return self.root.path / str(self.out)[1:] / path

    def run_build(self) -> None:
        command = str(self.inside_work / "kmod/build")
        self.root.run(command, "--out", str(self.out), str(self.tree()), self.root.kernel_release, log=self.log)

    def include_selftest(self, is_wanted: bool) -> None:
        """The list of sources, with the self test's part at its end or without."""
        sources = self.in_tree("nvidia-uvm/nvidia-uvm-sources.Kbuild")
        if not sources.exists():
            return
        added = (KMOD / "test/mpsd_test.Kbuild").read_text()
        text = sources.read_text().replace(added, "")
        sources.write_text(text + added if is_wanted else text)

    def keep(self, made: str, name: str) -> None:
        """Keep it without debugging information, which is nine tenths of its size."""
        self.root.run("strip", "--strip-debug", "-o", str(self.inside_work / "stripped.ko"), str(self.out / made), log=self.log)
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
        self.include_selftest(False)
        applied = applied_to(self.in_tree(""))
        facts = {"driver": applied.driver, "seconds": round(seconds, 1), "calls": applied.calls, "inserted": applied.inserted}
        (self.target / "facts.json").write_text(json.dumps(facts))
