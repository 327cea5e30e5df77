"""The sources of faults: one file each, with its parser beside it."""
