"""Facts about this machine: processes, cgroups, peers, descriptors, files, groups; system calls without a binding."""
