"""Build, wire, start, run and end the daemon: the only package that joins the others."""
