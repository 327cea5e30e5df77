"""One act: A and B count, B's second program faults, C arrives. It is played the same way under either control daemon.

Every line that is printed follows from the output of the tenants' programs and of the daemon.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from control_daemon import ControlDaemon, Unfit, Workspace
from stage import Stage
from tenants import Program, Tenant

_START_SECONDS = 60.0
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Pace:
    before: float = 4.0  # everybody counts
    linger: float = 8.0  # how long the broken program stays after its fault
    after: float = 2.5  # C counts
    cell: float = 0.5
    retry: float = 0.5


FAST = Pace(before=0.6, linger=2.0, after=0.4, cell=0.1, retry=0.2)


@dataclass(slots=True)
class Scene:
    """Ends all processes of the act: close() is called even after a failure."""

    stage: Stage
    pace: Pace
    workspace: Workspace
    daemon: ControlDaemon
    a: Tenant
    b: Tenant
    c: Tenant
    broken: Program | None = None
    _has_told: frozenset[str] = frozenset()
    _next_cell: float = 0.0

    @property
    def tenants(self) -> tuple[Tenant, Tenant, Tenant]:
        return (self.a, self.b, self.c)

    def play(self) -> None:
        self.stage.open([tenant.draw for tenant in self.tenants])
        self.stage.tell("$ nvidia-cuda-mps-control -d", "dim")
        self.daemon.open()
        for tenant in (self.a, self.b):
            tenant.start(self.workspace.clients, self.daemon.clients)
            self.wait_for(lambda tenant=tenant: tenant.is_counting, _START_SECONDS, f"{tenant.name} did not start")
            self.stage.tell(f"{tenant.name} counts, {tenant.waited_seconds:.2f} s after it was started")
        self.wait(self.pace.before)
        self._fault()
        self.wait(self.pace.retry)
        self._late_comer()
        self.wait_for(lambda: bool(self.broken and self.broken.has_ended), self.pace.linger + 30, "B's program did not end")
        self.wait(self.pace.after)
        for tenant in self.tenants:
            tenant.listen()
        self.stage.close()

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.end()
        if self.broken:
            self.broken.end()
        self.daemon.close()

    # -- the scene ---------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        self.stage.tell("B starts a second program.  It has a bug ...", "bold")
        arguments = [str(self.workspace.clients / "faulter"), "oob_write", "--after", "0.3", "--linger", str(self.pace.linger)]
        self.broken = Program(arguments, self.daemon.clients, self.b.user)
        said: list[str] = []

        def has_faulted() -> bool:
            assert self.broken is not None
            for event in self.broken.events():
                said.append(event["event"])
                if event["event"] == "fault":
                    self.stage.tell("... and writes far outside its memory.", "bold")
            return "result" in said

        self.wait_for(has_faulted, _START_SECONDS, "B's second program did not fault")
        self.wait_for(lambda: self.b.is_dead, _START_SECONDS, "B outlived its own fault")

    def _late_comer(self) -> None:
        self.stage.tell("C starts.")
        self.c.start(self.workspace.clients, self.daemon.clients)
        self._tell_servers()
        deadline = time.monotonic() + self.pace.linger + _START_SECONDS
        while not self.c.is_counting:
            self.wait_for(lambda: self.c.is_counting or self.c.is_refused, deadline - time.monotonic(), "C did not start")
            if self.c.is_refused:
                self.c.listen()  # its last words may have come since
                if self.c.refusals == 1:
                    self.stage.tell(f"C is refused: {self.c.error}.  It tries again.", "wait")
                self.wait(self.pace.retry)
                self.c.start(self.workspace.clients, self.daemon.clients)
        self.stage.tell(f"C counts, {self.c.waited_seconds:.2f} s after its first attempt.", "good")

    def _tell_servers(self) -> None:
        self.stage.tell("$ echo get_server_status ... | nvidia-cuda-mps-control", "dim")
        self.stage.tell("; ".join(f"server {pid}: {status}" for pid, status in self.daemon.servers()) or "no server")

    # -- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick()

    def wait_for(self, is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise Unfit(f"{otherwise} within {seconds:.0f} s")
            self._tick()

    def _tick(self) -> None:
        time.sleep(_TICK_SECONDS)
        for tenant in self.tenants:
            tenant.listen()
            if tenant.is_dead and tenant.name not in self._has_told:
                self._has_told |= {tenant.name}
                self.stage.tell(f"{tenant.name} dies: {tenant.error}", "bad")
        if time.monotonic() >= self._next_cell:
            self._next_cell = time.monotonic() + self.pace.cell
            for tenant in self.tenants:
                tenant.mark_cell()
        self.stage.draw()
