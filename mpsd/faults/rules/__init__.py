"""Decisions about faults: which observations are of one fault, the verdict, blame, the response.  Pure."""
