"""The program: from a command line to an exit status, and everything that can go wrong in one line.

    0     done
    1     mpsd said no, or is not well (`health`), or the answer could not be written
    2     the command line is wrong
    3     there is no mpsd, or it ended
    130   interrupted        141   the reader of the output has gone
"""

import os
import sys

DONE, REFUSED, USAGE, NO_MPSD, INTERRUPTED, OUTPUT_CLOSED = 0, 1, 2, 3, 130, 141


def run() -> int:
    """The entry point that pip installs.  All else is loaded in here, so that Ctrl-C finds nothing unguarded."""
    try:
        from mpsctl.program import main
        from mpsctl.surroundings import of_process

        return main(sys.argv[1:], of_process())
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written goes nowhere, silently
        return OUTPUT_CLOSED


if __name__ == "__main__":
    sys.exit(run())
