"""The process that takes images: cuda-python, never imported by the daemon."""
