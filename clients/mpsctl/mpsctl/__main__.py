"""The entry point of mpsctl.  It returns these exit statuses, with one line on standard error after a failure:

    0     done
    1     mpsd refused the call, or is not healthy (`health`), or the answer could not be written
    2     the command line is wrong
    3     mpsd is not running, or it ended
    130   interrupted        141   the reader of the output has gone
"""

import os
import sys

DONE, REFUSED, USAGE, NO_MPSD, INTERRUPTED, OUTPUT_CLOSED = 0, 1, 2, 3, 130, 141


def run() -> int:
    """Run mpsctl; pip installs this entry point.  All imports happen inside, so that Ctrl-C during them is handled too."""
    try:
        from mpsctl.program import main
        from mpsctl.surroundings import of_process

        return main(sys.argv[1:], of_process())
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python's flush at exit must not fail again
        return OUTPUT_CLOSED


if __name__ == "__main__":
    sys.exit(run())
