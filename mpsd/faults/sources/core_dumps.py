"""CUDA core dumps of clients as a source: they name the culprit of an SM exception, and clear innocent clients.

A dump is its writer's claim: any user can forge one.  So it counts only against or for a client of the user who owns the file,
and only if that client alone has opened it, which the kernel reports (host/file_writers.py).  If the kernel cannot
identify the writer (without root), a dump proves nothing and clears no client: it is shown with the client whose pid, in its
own pid namespace, is in the file's name, if exactly one matches.  A client can still accuse or clear itself with a false dump.
Prose: docs/faults.md, "Core dumps".
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.errors import UnusablePath
from mpsd.fairness.rates import Rate, Rates
from mpsd.faults.sources.core_dump_directory import CoreDirectory, Dump
from mpsd.faults.sources.core_dump_file import CoreFile, GpuException
from mpsd.faults.sources.sm_exceptions import DEVICE_EXCEPTIONS, MMU_EXCEPTIONS
from mpsd.host import processes
from mpsd.host.descriptors import FULL
from mpsd.host.file_writers import FileWriters, Lineage
from mpsd.host.inotify import COMPLETE, DirectoryWatch
from mpsd.host.polling import until_readable
from mpsd.model.fault import TEXT_CHARACTERS, FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
KEPT = 16
TOTAL_BYTES = 256 << 20
_LOOK_SECONDS = 5.0  # for files without an event: from before the start, or after the kernel's queue was full
_SLOW_SECONDS = 10.0  # a look reads for a second
_MOST_KNOWN = 8192
# Dumps of a user: each can be an incident, of which the last 10,000 are kept, of all users; and to parse one takes the
# interpreter's lock from the event loop.
_JUDGED = Rate(128, 0.1)
# Tables only: 0.3 MB in 0.1 s; with memory it would be 11 MB and up to a second (measured).  skip_abort: the program itself
# decides what to do about its error.
_FLAGS = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory,skip_abort"

T = TypeVar("T")


def environment(directory: Path) -> dict[str, str]:
    """Return the variables that a client must be started with (CUDA-GDB's documentation, "GPU core dump support").

    %h, the host's name, is needed because the first process of every container has the same pid.
    """
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_FILE": str(directory / "core.%h.%p"),
        "CUDA_COREDUMP_GENERATION_FLAGS": _FLAGS,
    }


class CoreDumps:
    """Guards the directory of dumps, and the pids that clients have in their own namespaces.

    clients_of: the clients of a user, including those that ended within the last minute.  share_of: the uid that a uid counts
    as.  absent: why no dumps are read; "" while they are.

    Only threads touch the directory, one at a time, and one that reads the kernel's events: a user can hold its lock for any
    time (core_dump_directory.py).  They are abandoned when mpsd ends.
    """

    def __init__(
        self,
        directory: Path,
        clients_of: Callable[[int], Iterable[ProcessId]],
        *,
        share_of: Callable[[int], int] = int,
    ) -> None:
        self.absent = "not started"
        self._path = directory
        self._clients_of, self._share_of = clients_of, share_of
        self._inside: OrderedDict[ProcessId, int] = OrderedDict()
        self._writers: FileWriters | None = None
        self._is_full = False  # no descriptor was free for the writers: mpsd tries again
        self._judged = Rates(_JUDGED)
        self._looks, self._drains = trio.CapacityLimiter(1), trio.CapacityLimiter(1)

    def note_arrival(self, process: ProcessId, domain: Domain, is_new: bool, is_again: bool) -> None:
        if is_new and self._writers is None:  # else only the kernel's word counts
            self.meet(process)

    def meet(self, process: ProcessId) -> None:
        """Note the pid that the client has in its own namespace; call it while the client lives."""
        number = processes.pid_inside(process.pid)
        if number is not None:
            self._inside[process] = number
            if len(self._inside) > _MOST_KNOWN:
                self._inside.popitem(last=False)

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled; where dumps cannot be read, try again now and then."""
        while True:
            try:
                directory, watch, self._writers = await self._in_thread(self._open)
                break
            except (UnusablePath, OSError) as exc:
                self._note_absent(str(exc))
                await trio.sleep(_LOOK_SECONDS)
        self.absent = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_writers, directory.place)
                await self._follow(directory, watch, publish)
        finally:
            self.absent = "stopped"
            watch.close()
            if not self._looks.borrowed_tokens and not self._drains.borrowed_tokens:  # else a thread still uses the descriptors
                if self._writers is not None:
                    self._writers.close()
                directory.close()

    def _open(self) -> tuple[CoreDirectory, DirectoryWatch, FileWriters | None]:
        """Raises UnusablePath, OSError."""
        directory = CoreDirectory(
            self._path,
            KEPT,
            TOTAL_BYTES,
            share_of=self._share_of,
            writers_of=self._writers_of,
            may_read=lambda uid: self._judged.allows(self._share_of(uid), time.monotonic()),
        )
        try:
            watch = DirectoryWatch(directory.place, COMPLETE)
        except OSError:
            directory.close()
            raise
        return directory, watch, self._open_writers(directory.place)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what the function returns.  On cancellation it is abandoned; no other begins until it ends.

        Raises UnusablePath, OSError.
        """
        failure: OSError | UnusablePath
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_slow)
            try:
                return await run_in_thread(function, *arguments, abandon_on_cancel=True, limiter=self._looks)
            except (OSError, UnusablePath) as exc:
                failure = exc
            finally:
                nursery.cancel_scope.cancel()
        raise failure

    async def _note_slow(self) -> None:
        await trio.sleep(_SLOW_SECONDS)
        self._note_absent(f"{self._path} does not answer", "dumps are read when it does: a user may hold its lock")

    async def _follow(self, directory: CoreDirectory, watch: DirectoryWatch, publish: Callable[[Observation], None]) -> None:
        closed: frozenset[str] = frozenset()
        while True:
            began = trio.current_time()
            try:
                found = await self._in_thread(directory.look, closed)
            except OSError as exc:  # as without a free descriptor
                self._note_absent(f"{self._path}: {exc.strerror}", "dumps are read later")
                await trio.sleep(_LOOK_SECONDS)
                continue
            self.absent = ""
            await self._tell(found, publish)
            # Pause as long as it took, however many files come: parsing holds the interpreter's lock.
            await trio.sleep(trio.current_time() - began)
            closed = frozenset()
            with trio.move_on_after(0 if directory.has_more else _LOOK_SECONDS):
                closed = await watch.names()

    async def _follow_writers(self, place: Path) -> None:
        """Read the events of the files at once: until then mpsd does not see what a process does with a file elsewhere.

        Return if the kernel does not report them.
        """
        while self._writers is None:
            if not self._is_full:
                return
            await trio.sleep(_LOOK_SECONDS)
            self._writers = await self._in_thread(self._open_writers, place)
        while True:
            await until_readable(self._writers.descriptor)
            began = trio.current_time()
            await run_in_thread(self._writers.drain, abandon_on_cancel=True, limiter=self._drains)
            await trio.sleep(trio.current_time() - began)  # as long as it took, however many come

    def _writers_of(self, file: int) -> frozenset[Lineage]:
        return self._writers.take(file) if self._writers is not None else frozenset()

    async def _tell(self, found: Iterable[Dump], publish: Callable[[Observation], None]) -> None:
        refused, read_ns = [], time.monotonic_ns()
        for dump in found:
            if dump.core is None:
                refused.append(dump)
            else:
                began, seen_ns = trio.current_time(), read_ns - int(dump.age_seconds * 1e9)
                is_certain = self._writers is not None and not dump.may_change
                publish(observe(dump, dump.core, self._owner(dump), seen_ns, is_certain=is_certain))
                await trio.sleep(trio.current_time() - began)  # others' work comes between two of them
        if refused:  # one line, however many a user sends
            first = refused[0]
            log.info("faults.core_dump_refused", count=len(refused), file=first.name, uid=first.uid, why=first.why)
        for uid, count in self._judged.take_suppressed().items():
            log.warning("faults.core_dumps_not_judged", uid=uid, count=count, why="this user's come too fast")

    def _owner(self, dump: Dump) -> ProcessId | None:
        clients = list(self._clients_of(dump.uid))
        if self._writers is not None:
            return find_writer(dump.writers, clients)
        for process in clients:
            if process not in self._inside:
                self.meet(process)
        return find_owner(dump.pid, clients, self._inside)

    def _open_writers(self, place: Path) -> FileWriters | None:
        try:
            return FileWriters(place)
        except OSError as exc:
            if not self._is_full:
                log.info("faults.core_dumps_by_name", why=exc.strerror, effect="dumps prove nothing and clear no client")
            self._is_full = exc.errno in FULL
            return None

    def _note_absent(self, why: str, effect: str = "culprits of SM exceptions are suspected") -> None:
        """Log it, once."""
        if self.absent != why:
            self.absent = why
            log.warning("faults.no_core_dumps", path=str(self._path), why=why, effect=effect)


def find_writer(lineages: Iterable[Lineage], clients: Iterable[ProcessId]) -> ProcessId | None:
    """Return the client that used the file, itself or through a child.  None: another process used it too, or alone."""
    known = set(clients)
    found = {next((process for process in lineage if process in known), None) for lineage in lineages}
    return found.pop() if len(found) == 1 else None


def find_owner(pid: int, clients: Iterable[ProcessId], inside: Mapping[ProcessId, int]) -> ProcessId | None:
    """Return the one client with this pid in its own namespace; None: none has it, or several have.

    A client whose pid was never noted is taken to be in mpsd's own namespace.
    """
    able = [process for process in clients if inside.get(process, process.pid) == pid]
    return able[0] if len(able) == 1 else None


def observe(dump: Dump, core: CoreFile, owner: ProcessId | None, seen_ns: int, *, is_certain: bool = True) -> Observation:
    """Return the observation that a dump makes about its writer.  is_certain: the kernel identified the writer."""
    counts = owner is not None and is_certain
    if not core.exceptions:
        said = "it had no work on the GPU" if core.clears else "it had work on the GPU, none of it with an exception"
        text = f"core dump of pid {dump.pid}: {said}"
        return Observation(Source.CORE_DUMP, seen_ns, process=owner, clears=core.clears and counts, text=text)
    first = core.exceptions[0]
    fault_class = _class_of(first.kind)
    text = f"core dump of pid {dump.pid}: {_describe(first, core.kernel)}"
    kept = f"; kept as cores/{dump.kept_as}" if dump.kept_as else ""
    return Observation(
        Source.CORE_DUMP,
        seen_ns,
        fault_class,
        process=owner,
        is_proof=counts and fault_class is FaultClass.SM,
        kernel=core.kernel,
        pc=first.pc if first.pc is not None else first.error_pc,
        text=text[: TEXT_CHARACTERS - len(kept)] + kept,
    )


def _class_of(kind: int) -> FaultClass:
    """Return the class.  Measurements show only for SM exceptions that the culprit's dump alone has them."""
    if kind in MMU_EXCEPTIONS:
        return FaultClass.MMU
    return FaultClass.DEVICE if kind in DEVICE_EXCEPTIONS else FaultClass.SM


def _describe(seen: GpuException, kernel: str) -> str:
    where = f" in {kernel}" if kernel else ""
    if seen.pc_offset is not None:
        where += f"+{seen.pc_offset:#x}" if kernel else f" at {seen.pc_offset:#x} of a function"
    block = ",".join(map(str, seen.block))
    thread = f" thread ({','.join(map(str, seen.thread))})" if seen.thread else ""
    return f"{seen.name}{where}, block ({block}){thread}, SM {seen.sm}"
