/* SPDX-License-Identifier: MIT */
/*
 * mpsd_keeper.h: the protocol of `mpsd-keeper`, the process that holds descriptors for mpsd.
 *
 * mpsd starts the keeper. The keeper outlives mpsd and returns every descriptor to the next mpsd. It does
 * not know what they are: listening sockets, connections of waiting clients, GPU memory.
 *
 * Transport.  AF_UNIX, SOCK_SEQPACKET; mpsd binds and listens, and starts the keeper with the socket
 * as descriptor 3: `mpsd-keeper --fd 3 --max 4096`.  mpsd owns the path and removes it.  Peers of
 * another uid get NOT_ALLOWED, peers beyond MPSD_KEEPER_PEERS get PEERS_FULL; both are disconnected.
 * Numbers are in the byte order of the machine.  In Python's struct a message is "=HHHHIIQQQQ64sQQ",
 * an entry "=64sQQQQ", a stat "=IIIIIIQQQQQQQQQQQQQ".
 *
 * A request is one datagram: exactly one struct mpsd_keeper_message, with `version` of the sender,
 * `op`, `sequence` of the peer's choice, and the fields of the table below; all others are zero, and
 * a request where they are not is refused.  A reply is one datagram: the same struct with REPLY in
 * `flags`, `op` and `sequence` of the request, `status`, and after it the payload, if any.  Requests
 * are answered in their order.
 *
 *   op     request                              reply when status is OK
 *   HELLO  the first one of a connection        count: descriptors held
 *   PUT    id, generation (1 or more), size,    generation, size, item_flags, as kept
 *          item_flags; one descriptor
 *   GET    id; generation, 0 for any            id, generation, size, item_flags; one descriptor
 *   DROP   id; generation, 0 for any            generation, size, item_flags of what was closed
 *   LIST   id: the last one seen, or none       count entries after the message, ids ascending in byte
 *                                               order, all beyond `id`; MORE in flags when others follow
 *   STAT   nothing                              a struct mpsd_keeper_stat after the message
 *   STOP   nothing                              nothing; then the keeper closes everything and exits
 *
 * A refusal carries only the status (BAD_VERSION: also the keeper's version, as every reply does).
 * After BAD_VERSION, NOT_GREETED, NOT_ALLOWED and PEERS_FULL the keeper closes the connection.
 *
 * Version.  The first words exchanged.  Same major: continue.  Other major: BAD_VERSION, and close.
 *
 * QUIET in the flags of PUT, DROP or STOP asks for no reply when the status is OK; refusals still come.
 * A peer may send such a request without waiting: the keeper carries it out even after the peer died.
 *
 * Generations.  PUT of an id that is held replaces the descriptor, and closes the old one, if its generation
 * is higher; else STALE.  GET and DROP with a generation not 0 match exactly that one; else STALE.
 * After DROP the keeper forgets the id and its generation.
 *
 * Descriptors.  PUT takes exactly one and no other request takes any; every descriptor that comes with
 * a refused request is closed.  An id is 1 to 64 of [a-z0-9._:-], padded with NUL, not ended by one.
 *
 * Limits.  Descriptors held: --max, or fewer if RLIMIT_NOFILE cannot be raised so far; STAT has the number.
 * A peer that does not send HELLO, or does not read its replies, is disconnected after
 * MPSD_KEEPER_PATIENCE_MS; while a reply waits, no further request of that peer is read.  An empty
 * datagram looks like the end of the connection and ends it.
 *
 * Ending.  SIGTERM: the keeper exits, which closes all it holds.  SIGHUP, SIGINT and SIGPIPE are
 * ignored.  Exit status 0; 2 when it could not start, with one line on stderr.
 */
#ifndef MPSD_KEEPER_H
#define MPSD_KEEPER_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stdint.h>
#define MPSD_KEEPER_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#else
#define MPSD_KEEPER_SIZE(type, bytes)
#endif

enum { MPSD_KEEPER_MAJOR = 1, MPSD_KEEPER_MINOR = 0 };

enum {
	MPSD_KEEPER_ID_BYTES = 64,
	MPSD_KEEPER_PAGE = 64,  /* entries in one reply to LIST */
	MPSD_KEEPER_PEERS = 8,  /* connections at a time */
};

enum {
	MPSD_KEEPER_HELLO = 1,
	MPSD_KEEPER_PUT = 2,
	MPSD_KEEPER_GET = 3,
	MPSD_KEEPER_DROP = 4,
	MPSD_KEEPER_LIST = 5,
	MPSD_KEEPER_STAT = 6,
	MPSD_KEEPER_STOP = 7,
};

enum { /* flags */
	MPSD_KEEPER_QUIET = 0x0001, /* PUT, DROP, STOP: no reply when it succeeds */
	MPSD_KEEPER_MORE = 0x4000,  /* reply to LIST: other entries follow */
	MPSD_KEEPER_REPLY = 0x8000, /* every reply */
};

enum { /* status; a number never changes its meaning */
	MPSD_KEEPER_OK = 0,
	MPSD_KEEPER_BAD_VERSION = 1,     /* another major; the connection ends */
	MPSD_KEEPER_BAD_SIZE = 2,        /* the datagram is not one message */
	MPSD_KEEPER_BAD_FIELD = 3,       /* a field that is not this op's, a reserved one, or an unknown flag is not zero */
	MPSD_KEEPER_BAD_OP = 4,
	MPSD_KEEPER_BAD_ID = 5,          /* empty, not padded with NUL, or a byte outside [a-z0-9._:-] */
	MPSD_KEEPER_BAD_GENERATION = 6,  /* PUT with generation 0 */
	MPSD_KEEPER_BAD_DESCRIPTORS = 7, /* not exactly as many as the op takes, or they did not all arrive */
	MPSD_KEEPER_NOT_FOUND = 8,
	MPSD_KEEPER_STALE = 9,           /* the generation held is another (PUT: not lower) */
	MPSD_KEEPER_FULL = 10,           /* as many descriptors are held as may be */
	MPSD_KEEPER_NO_ROOM = 11,        /* the kernel refused memory or a descriptor; later it may not */
	MPSD_KEEPER_NOT_GREETED = 12,    /* the first request was not HELLO, or HELLO came twice; the connection ends */
	MPSD_KEEPER_NOT_ALLOWED = 13,    /* another uid; the connection ends */
	MPSD_KEEPER_PEERS_FULL = 14,     /* the connection ends */
};

struct mpsd_keeper_message {
	uint16_t major;      /* of the speaker, in every message */
	uint16_t minor;
	uint16_t op;
	uint16_t flags;
	uint32_t sequence;   /* the peer's; echoed */
	uint32_t status;     /* zero in a request */
	uint64_t generation;
	uint64_t size;       /* the peer's own note: bytes that the descriptor stands for */
	uint64_t item_flags; /* the peer's own note */
	uint64_t count;      /* zero in a request */
	char id[64];
	uint64_t reserved[2]; /* zero */
};
MPSD_KEEPER_SIZE(struct mpsd_keeper_message, 128);

struct mpsd_keeper_entry { /* of LIST */
	char id[64];
	uint64_t generation;
	uint64_t size;
	uint64_t item_flags;
	uint64_t reserved; /* zero */
};
MPSD_KEEPER_SIZE(struct mpsd_keeper_entry, 96);

struct mpsd_keeper_stat {
	uint32_t pid;
	uint32_t held;
	uint32_t held_max;
	uint32_t peers;       /* now, the asking one included */
	uint32_t peers_max;
	uint32_t reserved0;   /* zero */
	uint64_t size_sum;    /* of all that is held; stays at its highest value instead of wrapping */
	uint64_t started_ns;  /* CLOCK_BOOTTIME */
	uint64_t puts;        /* that succeeded, as the next two */
	uint64_t gets;
	uint64_t drops;
	uint64_t refusals;    /* requests answered with a status other than OK */
	uint64_t strangers;   /* connections of another uid */
	uint64_t impatience;  /* peers disconnected: no HELLO, or replies not read */
	uint64_t reserved[5]; /* zero */
};
MPSD_KEEPER_SIZE(struct mpsd_keeper_stat, 128);

#endif
