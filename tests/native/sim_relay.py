"""A relay as small as can be: copies datagrams, descriptors and credentials between a client and a control daemon."""

import array
import os
import socket
import struct
import sys
import threading

DIRECTORY, TARGET, MODE = sys.argv[1:4]  # MODE: relay, close (what connects), refuse (all but the probe)


def pump(source: socket.socket, sink: socket.socket) -> None:
    while True:
        data, parts, _, _ = source.recvmsg(1 << 17, socket.CMSG_SPACE(12) + socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        if not data:
            break
        descriptors = array.array("i")
        passed = [part for part in parts if part[1] == socket.SCM_CREDENTIALS and struct.unpack("3i", part[2])[0] > 0]
        for level, kind, value in parts:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(value[: len(value) // 4 * 4])
        if descriptors:
            passed.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes()))
        sink.sendmsg([data], passed)
        for descriptor in descriptors:
            os.close(descriptor)
    sink.shutdown(socket.SHUT_WR)


def serve(client: socket.socket) -> None:
    with client, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        server.connect(TARGET)
        back = threading.Thread(target=pump, args=(server, client), daemon=True)
        back.start()
        pump(client, server)
        back.join()


listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(f"{DIRECTORY}/control")
os.chmod(f"{DIRECTORY}/control", 0o666)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # what is accepted inherits it
listener.listen(64)
print("ready", flush=True)
for number in range(1 << 30):
    peer, _ = listener.accept()
    if MODE == "close" or (MODE == "refuse" and number % 2):
        peer.close()
    else:
        threading.Thread(target=serve, args=(peer,), daemon=True).start()
