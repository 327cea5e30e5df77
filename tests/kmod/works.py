"""One root, one build and one guest of each case, made in the background; what came of each is a row that the cache keeps."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from tests.kmod.applying import apply_to
from tests.kmod.building import Build, build_in
from tests.kmod.cases import Case
from tests.kmod.distributions import Root, Unavailable, root_of
from tests.kmod.machine import Boot, boot
from tests.kmod.table import Row, Step, applied_row, failed_row, keep, row_of, skipped_row

AT_ONCE = 2  # cases that are built and run: one of them compiles while the other waits for its emulated machine


class Works:
    """Builds and boots cases, each once, in order.

    is_all: also what an environment variable has to ask for.  last: the step after which a case ends.
    """

    def __init__(self, cases: Iterable[Case], is_all: bool = False, last: Step = Step.BOOTED) -> None:
        self.rows: dict[str, Row] = {}
        self._is_all = is_all
        self._last = last
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._builds: dict[Case, Future[tuple[Root, Build]]] = {case: Future() for case in cases}
        self._boots = {case: self._pool.submit(self._work, case) for case in self._builds}

    def build(self, case: Case) -> tuple[Root, Build]:
        """Wait for the case's build.  Raises Unavailable, or AssertionError with the end of the build's log."""
        return self._builds[case].result()

    def boot(self, case: Case) -> Boot:
        """Wait for the end of the case's guest.  Raises Unavailable where it is only built."""
        return self._boots[case].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _work(self, case: Case) -> Boot:
        built = self._builds[case]
        try:
            root, made = self._build(case)
        except BaseException as exc:
            built.set_exception(exc)
            raise
        built.set_result((root, made))
        self._note(case, row_of(made, None))
        if self._last < Step.BOOTED:
            raise Unavailable("only built")
        found = boot(root, made)
        self._note(case, row_of(made, found))
        return found

    def _build(self, case: Case) -> tuple[Root, Build]:
        try:
            case.check(self._is_all)
            if self._last == Step.APPLIED:
                self._note(case, applied_row(apply_to(case.archive())))
                raise Unavailable("only applied")
            root = root_of(case.distribution)
            return root, build_in(root, case)
        except Unavailable as exc:
            self.rows.setdefault(case.name, skipped_row(case, str(exc)))
            raise
        except AssertionError as exc:
            self._note(case, failed_row(case, str(exc)))
            raise

    def _note(self, case: Case, row: Row) -> None:
        self.rows[case.name] = row
        keep(case, row)
