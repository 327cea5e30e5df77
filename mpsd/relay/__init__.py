"""Relay connections between a client and its domain: identify the process, and copy messages without interpreting them."""
