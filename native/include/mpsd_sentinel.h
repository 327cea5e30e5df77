/* SPDX-License-Identifier: MIT */
/*
 * mpsd_sentinel.h: the protocol of `mpsd-sentinel`, which contains SM exceptions in one vendor server.
 *
 * The sentinel has two processes. One is a CUDA client of the server, stopped with SIGSTOP as soon as it has a context: while a
 * client of a server is stopped, the server does not tear its clients down after an SM exception. The other, the watcher, does
 * not use CUDA. It waits for the exception, holds the descriptors of the server's clients, and resumes the GPU through a debugger
 * session on the stopped client's own compute object. Reasons and figures: docs/faults.md, "The sentinel".
 *
 * Transport. AF_UNIX, SOCK_SEQPACKET; mpsd binds and listens, and starts `mpsd-sentinel --fd N [--uid UID]` with that socket, with
 * the domain's CUDA_MPS_PIPE_DIRECTORY and one GPU in CUDA_VISIBLE_DEVICES. UID is the user of the server: the stopped client's. The watcher outlives mpsd; the next mpsd connects again.
 * A new connection replaces the one before. Peers of another uid are disconnected. A new peer first receives every report so far,
 * from the start, then each new one. A request is one datagram, exactly one struct mpsd_sentinel_request; a malformed one ends
 * the connection. Once armed, a watcher that knows no server yet exits ten seconds after it lost its peer: it would not see the
 * server's end.
 *
 *   op     request                             effect
 *   ADD    pid and, as a descriptor, a pidfd    the process is a client of the server: its descriptors are held after an exception
 *                                               (nothing, if it is known: the next mpsd names all clients again)
 *   SERVER pid and, as a descriptor, a pidfd    the process is the server: when it ends, the watcher exits as after END
 *   END    pid 0                                the stopped client is killed and the watcher exits. After an exception this ends
 *                                               the server's other clients, as without a sentinel
 *          pid MPSD_SENTINEL_UNLESS_CONTAINED   the same before an exception; nothing after one: FAULT has been reported
 *
 *   report      pid           status               count                      other
 *   STARTED     the client    0                    pid of the watcher         the client runs, still without a context
 *   ARMED       the client    0                    SMs of the GPU             an exception from now on is contained
 *   FAULT       0             1: RM reports an MMU SMs that report an error   pc, warp_esr, global_esr of the first of them
 *                             fault, too; else 0 which they did not before
 *   HOLDS       of ADD        0, or -errno         descriptors held anew      is_culprit: pc is in one of its mappings, which has
 *                                                                            mapping_bytes. It can be true of several clients (measured:
 *                                                                            2 of 53 exceptions): then each is a suspect
 *   CONTAINED   0             0                    times so far               the clients go on: RESUME has returned; again after a trap on
 *                                                                            half of the SMs that the same SMs report again (docs/sentinel.md)
 *   FAILED      0             NV_STATUS, CUresult  enum mpsd_sentinel_step    the watcher exits; the server's clients end as without a
 *                             or -errno                                       sentinel, after an exception
 *
 * Where a client would hang after RESUME (AT_SHARED, AT_SECOND), FAULT and the looks at the clients are followed by FAILED, not by CONTAINED.
 * `time_ns` is CLOCK_MONOTONIC. After each FAULT one HOLDS comes for each process that was added and lives; it can come after
 * CONTAINED, and up to half a second after FAILED. A process is held once: in its later reports the count is 0.
 * After an exception the server accepts no client and answers no query. Clients that were added are held until the watcher exits,
 * which it does when the last of them has ended. A death of the watcher kills the stopped client.
 *
 * Self-test. `mpsd-sentinel --trial ROLE` is a client in the server that its environment names; it writes lines to stdout:
 *
 *   ROLE    lines                                exits
 *   count   "ready 0" after its first kernel     at the end of its stdin: "exact N", status 0, if N kernels counted to N; else "wrong N"
 *   trap    "ready 0"                            after a byte on stdin it traps, "error CURESULT", and exits at the end of its stdin
 *   both    "error CURESULT"                     at once, with status 1, if any call fails before
 *
 * Exit status: 0 after END, the server's end or the last client's end; 1 after FAILED; 2 when it could not start, with one line on stderr.
 * In Python's struct a request is "=IIII", a report "=IIIiQQIIIIQ".
 */
#ifndef MPSD_SENTINEL_H
#define MPSD_SENTINEL_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stdint.h>
#define MPSD_SENTINEL_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#else
#define MPSD_SENTINEL_SIZE(type, bytes)
#endif

enum { MPSD_SENTINEL_VERSION = 1 };

enum {
	MPSD_SENTINEL_CLIENTS = 64,   /* that can be added; a server takes 48 */
	MPSD_SENTINEL_HELD = 64,      /* descriptors of one of them */
	MPSD_SENTINEL_REPORTS = 200,  /* kept for the next peer: its socket has room for 277 (measured); later ones are not kept */
	MPSD_SENTINEL_START_MS = 60000,
};

enum { MPSD_SENTINEL_UNLESS_CONTAINED = 1 };

enum mpsd_sentinel_op { MPSD_SENTINEL_ADD = 1, MPSD_SENTINEL_END = 2, MPSD_SENTINEL_SERVER = 3 };

enum mpsd_sentinel_kind {
	MPSD_SENTINEL_ARMED = 1,
	MPSD_SENTINEL_FAULT = 2,
	MPSD_SENTINEL_HOLDS = 3,
	MPSD_SENTINEL_CONTAINED = 4,
	MPSD_SENTINEL_FAILED = 5,
	MPSD_SENTINEL_STARTED = 6,
};

enum mpsd_sentinel_step { /* of FAILED */
	MPSD_SENTINEL_AT_START = 1,   /* no context: CUresult, or -ETIMEDOUT, or -ECHILD when the client ended */
	MPSD_SENTINEL_AT_STOP = 2,    /* -errno */
	MPSD_SENTINEL_AT_FIND = 3,    /* the client's objects in RM */
	MPSD_SENTINEL_AT_SESSION = 4,
	MPSD_SENTINEL_AT_EVENT = 5,
	MPSD_SENTINEL_AT_READ = 6,
	MPSD_SENTINEL_AT_RESUME = 7,
	MPSD_SENTINEL_AT_END = 8,     /* the stopped client ended or was continued by others */
	MPSD_SENTINEL_AT_SHARED = 9,  /* status 0: a warp failed on an SM that had other warps, which would not have continued */
	MPSD_SENTINEL_AT_SECOND = 10, /* status 0: an exception after the first was contained, or that one did not end: clients would hang */
};

struct mpsd_sentinel_request {
	uint32_t version;
	uint32_t op;
	uint32_t pid;
	uint32_t reserved; /* 0 */
};
MPSD_SENTINEL_SIZE(struct mpsd_sentinel_request, 16);

struct mpsd_sentinel_report {
	uint32_t version;
	uint32_t kind;
	uint32_t pid;
	int32_t status;
	uint64_t time_ns;
	uint64_t pc;
	uint32_t warp_esr;
	uint32_t global_esr;
	uint32_t count;
	uint32_t is_culprit;
	uint64_t mapping_bytes; /* of HOLDS: the size of that mapping */
};
MPSD_SENTINEL_SIZE(struct mpsd_sentinel_report, 56);

#endif
