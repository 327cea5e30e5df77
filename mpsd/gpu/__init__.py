"""Facts about devices.  The only place that imports pynvml."""
