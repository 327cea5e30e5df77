"""Fault domains: vendor control daemons in private directories, driven by their documented commands."""
