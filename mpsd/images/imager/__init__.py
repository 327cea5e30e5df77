"""The process that takes images: cuda.bindings, never imported by the daemon."""
