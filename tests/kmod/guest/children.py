"""Child processes that own a VA space: what the module does to clients, it shall not do to the tests."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked process that runs `work` and sends the result; then it lives until it gets the order to end, or is killed."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._said, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._said)
            run_to_the_end(work, said)
        os.close(said)

    def answer(self) -> Any:
        """What `work` returned.  AssertionError, with its traceback, where it failed; EOFError where it was killed before."""
        with open(self._said, closefd=True) as said:
            line = said.readline()
        if not line:
            raise EOFError(f"child {self.pid} ended without a word")
        told = json.loads(line)
        assert "failure" not in told, told["failure"]
        return told["answer"]

    def end(self, number: int = signal.SIGKILL) -> int:
        """Signal it and wait; as wait()."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run_to_the_end(work: Callable[[], Any], said: int) -> None:
    """Run in the child, without return. It keeps all files of `work` open until it is ended."""
    kept = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        kept = work()
        answer = kept[0] if isinstance(kept, tuple) else kept
        told = {"answer": answer}
    except BaseException:
        told = {"failure": traceback.format_exc()}
    os.write(said, json.dumps(told).encode() + b"\n")
    while kept is not None or told:
        signal.pause()
