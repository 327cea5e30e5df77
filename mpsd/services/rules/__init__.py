"""Decisions about services: which standby is promoted, and which faults fence a writer.  Pure."""
