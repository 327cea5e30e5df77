"""Decisions: pure functions over snapshots, without sockets, clocks or processes."""
