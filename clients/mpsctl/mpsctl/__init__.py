"""mpsctl: the command-line tool for mpsd, over mpsd.sock.  Prose: docs/mpsctl.md."""

__version__ = "0.1.0"
