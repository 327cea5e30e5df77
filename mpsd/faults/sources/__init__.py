"""The sources of faults: one file each, and its parser in the same folder."""
