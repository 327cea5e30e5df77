"""Causes a fault that tests/clients/faulter has no mode for, with the same options and lines.

    sm_culprit.py MODE [--linger S] [--gate] [--json]      faults when its standard input ends

Standard library only; the driver compiles the PTX.  Modes called graph_ launch their kernel in a CUDA graph.  Those of clusters
and of the bulk copy engine (TMA) need compute capability 9.0.
"""

import ctypes
import json
import os
import sys
import time

EXIT_WORK = 5
BEYOND = "mov.u64 %d1, 0xdead000000000010;\n\t"
UNMAPPED = "mov.u64 %d1, 0x7000dead0000;\n\t"
OFF_BY_FOUR = "ld.param.u64 %d1, [p];\n\tadd.u64 %d1, %d1, 4;\n\t"
STORE = "st.volatile.global.u64 [%d1], %d1;"
ATOMIC = "atom.global.add.u64 %d2, [%d1], 1;"
JUMP = "anywhere: .callprototype ()_ ();\n\tcall %d1, (), anywhere;"
KERNELS = {
    "trap": "trap;",
    "trap_all": "trap;",
    "trap_waves": "trap;",
    "misaligned": OFF_BY_FOUR + STORE,
    "misaligned_all": OFF_BY_FOUR + STORE,
    "breakpoint": "brkpt;",
    "noncanonical": BEYOND + STORE,
    "shared_overrun": "mov.u32 %r1, 4194304;\n\tst.volatile.shared.u32 [%r1], %r1;",
    "atomic_misaligned": OFF_BY_FOUR + ATOMIC,
    "atomic_noncanonical": BEYOND + ATOMIC,
    "jump_null": "mov.u64 %d1, 0;\n\t" + JUMP,
    "jump_unmapped": UNMAPPED + JUMP,
    "jump_misaligned": "mov.u64 %d1, 0x7000dead0004;\n\t" + JUMP,
    "oob_write": UNMAPPED + STORE,
    "count_up": "ld.param.u64 %d1, [p];\n\t" + ATOMIC,
}
MEET = "barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;\n\t"
BULK_COPY = (
    "mov.u32 %r1, done;\n\tmov.u32 %r2, room;\n\tmbarrier.init.shared::cta.b64 [%r1], 1;\n\tfence.proxy.async.shared::cta;\n\t"
    "mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r1], 1024;\n\t"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 1024, [%r1];\n"
    "WAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 %q1, [%r1], 0;\n\t@!%q1 bra WAIT;"
)
HOPPER = {
    "cluster_trap": MEET + "mov.u32 %r1, %cluster_ctarank;\n\tsetp.eq.u32 %q1, %r1, 1;\n\t@%q1 trap;\n\t" + MEET,
    "cluster_shared": MEET
    + "mov.u32 %r1, room;\n\tmapa.shared::cluster.u32 %r2, %r1, 1;\n\tadd.u32 %r2, %r2, 4194304;\n\t"
    + "st.volatile.shared::cluster.u32 [%r2], %r1;\n\t"
    + MEET,
    "tma_unmapped": UNMAPPED + BULK_COPY,
    "tma_noncanonical": BEYOND + BULK_COPY,
    "tma_misaligned": OFF_BY_FOUR + BULK_COPY,
}
GRAPHS = {"graph_trap": "trap", "graph_misaligned": "misaligned", "graph_oob_write": "oob_write"}
WIDE = {  # blocks, threads
    "trap_all": (264, 256),
    "trap_waves": (20_000, 256),  # as a failed check of an index in a large kernel: most blocks wait for a place
    "misaligned_all": (264, 256),
    "cluster_trap": (4, 32),
    "cluster_shared": (4, 32),
}


def entry(name: str, body: str) -> str:
    head = "\n.explicitcluster\n.reqnctapercluster 2, 1, 1" if name.startswith("cluster_") else ""
    shared = ".shared .align 128 .b8 room[1024];\n\t.shared .align 8 .b64 done;\n\t" if name in HOPPER else ""
    registers = ".reg .pred %q<2>;\n\t.reg .b64 %d<3>;\n\t.reg .b32 %r<3>;\n\t"
    return f".visible .entry {name}(.param .u64 p){head}\n{{\n\t{registers}{shared}{body}\n\tret;\n}}\n"


def module_text(name: str) -> str:
    """Return the PTX of a module with this kernel and one that is correct."""
    target = ".version 8.0\n.target sm_90" if name in HOPPER else ".version 7.0\n.target sm_70"
    bodies = {each: (KERNELS | HOPPER)[each] for each in (name, "count_up")}
    return f"{target}\n.address_size 64\n" + "".join(entry(*each) for each in bodies.items())


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def check(rc: int) -> None:
    if rc:
        say("error", code=rc)
        sys.exit(EXIT_WORK)


class Launcher:
    """A context with the module of one kernel."""

    def __init__(self, name: str) -> None:
        self.cuda, self.name = ctypes.CDLL("libcuda.so.1"), name
        self.memory, self.stream, context, module = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.memory))
        self.functions = {each: ctypes.c_void_p() for each in ("count_up", name)}
        check(self.cuda.cuInit(0))
        check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(self.cuda.cuCtxSetCurrent(context))
        check(self.cuda.cuModuleLoadData(ctypes.byref(module), module_text(name).encode()))
        for each, function in self.functions.items():
            check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, each.encode()))
        check(self.cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(4096)))
        check(self.cuda.cuMemsetD8_v2(self.memory, 0, ctypes.c_size_t(4096)))
        check(self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1))
        check(self.cuda.cuCtxSynchronize())

    def launch(self, name: str) -> int:
        blocks, threads = WIDE.get(name, (1, 1))
        return int(
            self.cuda.cuLaunchKernel(
                self.functions[name], blocks, 1, 1, threads, 1, 1, 0, self.stream, self.parameters, None
            )
        )  # fmt: skip

    def graph(self) -> ctypes.c_void_p:
        """Return an executable graph of a correct kernel and this one."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        check(self.cuda.cuStreamBeginCapture_v2(self.stream, 0))
        for each in ("count_up", self.name):
            check(self.launch(each))
        check(self.cuda.cuStreamEndCapture(self.stream, ctypes.byref(graph)))
        check(self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)))
        return executable


def main(mode: str, linger: float) -> int:
    launcher = Launcher(GRAPHS.get(mode, mode))
    graph = launcher.graph() if mode in GRAPHS else None
    say("ready")
    sys.stdin.read()
    say("fault", mode=mode)
    check(launcher.cuda.cuGraphLaunch(graph, launcher.stream) if graph else launcher.launch(mode))
    code = launcher.cuda.cuCtxSynchronize()
    say("result", mode=mode, code=code)
    time.sleep(linger)
    return EXIT_WORK if code else 0


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word not in ("--gate", "--json")]
    sys.exit(main(words[0], float(words[2]) if words[1:2] == ["--linger"] else 0.0))
