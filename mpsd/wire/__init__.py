"""Bytes of mpsd.sock to checked values and back.  No I/O, no clock.  Prose: docs/protocol.md."""
