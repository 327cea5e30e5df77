"""Decisions about files and descriptors of this machine.  Pure."""
