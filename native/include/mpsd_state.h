/* SPDX-License-Identifier: MIT */
/*
 * mpsd_state.h: the forward state of a service, as it lies in shared host memory: what a standby needs to go on where the
 * active
 * process stopped (request ids, positions, counters, the state of a random generator), written by one process, read by others.
 *
 *     0        struct mpsd_state_head         written once, then never again
 *     65536    struct mpsd_state_control      one cache line
 *     65600    MPSD_STATE_SLOTS records       each of whole lines, of 64 bytes; the last one is padded with zero
 *
 * The file is a memfd of exactly that length, and sealed: it cannot shrink or grow (a process that maps it is safe from
 * SIGBUS),
 * and from Linux 5.1 on only its writer can write, and not even the writer can change the head.  Numbers are in the byte order
 * of the machine; every word from 65536 on is written and read as an aligned whole of 8 bytes.
 *
 * Update n (1, 2, ...) goes to slot n % MPSD_STATE_SLOTS.  mark[slot] is 2n - 1 while it is written, 2n when it is complete, 0
 * before the first.  So at every moment an n exists, the last complete update, such that every slot's mark is that of the
 * newest update of that slot up to n, except for the slot of n + 1, which may be at 2n + 1.  Anything else is damage.
 * digest[slot] covers the record, its n, and the head's generation, schema_hash and record_bytes.
 *
 * A memfd has one writer and one generation, which is in its head.  A process that takes over makes another memfd.
 *
 * Version: the first words.  Same major: read it.  Other major: do not.  Prose: docs/state.md.
 */
#ifndef MPSD_STATE_LAYOUT_H
#define MPSD_STATE_LAYOUT_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stdint.h>
#ifdef __cplusplus
#define MPSD_STATE_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define MPSD_STATE_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif
#else
#define MPSD_STATE_SIZE(type, bytes)
#endif

enum { MPSD_STATE_MAJOR = 1, MPSD_STATE_MINOR = 0 };

enum {
	MPSD_STATE_MAGIC = 0x7453706d, /* "mpSt" */
	MPSD_STATE_SLOTS = 2,
	MPSD_STATE_LINE = 64,             /* bytes; records are written by lines */
	MPSD_STATE_MOST_BYTES = 1048576,  /* of a record */
	MPSD_STATE_SCHEMA_ROOM = 3968,    /* bytes, a NUL included */
	MPSD_STATE_CONTROL_AT = 65536,    /* the largest page size; readers need not map what lies before it */
};

struct mpsd_state_head { /* written before the file is sealed; read with pread, once */
	uint16_t major;
	uint16_t minor;
	uint32_t magic;
	uint64_t generation;   /* of the arena's writer; 1 or more */
	uint64_t schema_hash;  /* FNV-1a, 64 bits, of the schema's text */
	uint32_t record_bytes; /* 1 .. MPSD_STATE_MOST_BYTES */
	uint32_t schema_bytes; /* less than MPSD_STATE_SCHEMA_ROOM */
	uint64_t reserved[12]; /* zero */
	char schema[3968];     /* which field lies where; padded with NUL; docs/state.md has its grammar */
};
MPSD_STATE_SIZE(struct mpsd_state_head, 4096);

struct mpsd_state_control { /* the writer alone writes */
	uint64_t mark[2];     /* release before the slot is touched and after it is done; readers: acquire */
	uint64_t digest[2];   /* between the two, as the slot's words: relaxed */
	uint64_t busy_ns;     /* for how long the writer has worked; relaxed */
	uint64_t since_ns;    /* CLOCK_MONOTONIC when the present work began; 0: it is at rest; relaxed */
	uint64_t reserved[2]; /* zero; not looked at */
};
MPSD_STATE_SIZE(struct mpsd_state_control, 64);

#endif
