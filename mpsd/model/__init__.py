"""Frozen values that several subjects share, and how quantities, devices and cgroup paths are written.  Pure."""
