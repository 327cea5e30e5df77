"""Where faults are seen first.  One file per source; today the kernel log, which tells mpsd not to place clients there."""
