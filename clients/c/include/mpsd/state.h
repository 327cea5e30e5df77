/* SPDX-License-Identifier: MIT */
/*
 * mpsd/state.h: the forward state: a record in shared host memory that one process publishes at every step. A process that
 * takes
 * over reads it as it was after the last complete step.  Needs neither mpsd nor CUDA.
 *
 * Publishing is a few stores, never a wait or a system call; if the writer is killed between any two of them, the record
 * published last remains.  A reader trusts no value it reads: it ends, after a bounded number of tries, with a whole record
 * as it was published, or with an error.  The layout is in mpsd_state.h.
 *
 * A writer, and a reader, is used by one thread at a time.  Results are 0 or -errno:
 *
 *   -EINVAL           an argument: an invalid record size, or a range outside the record
 *   -ECHILD           the writer belongs to the parent process: after fork, create another
 *   -EPERM            the descriptor is not a memfd sealed against shrinking and growing
 *   -EPROTONOSUPPORT  another major version
 *   -EBADMSG          the record is of another schema
 *   -ESTALE           the writer is of an older generation than was asked for
 *   -ENODATA          no update was published yet
 *   -EPROTO           damaged: another process has written there
 *   -EAGAIN           the writer overtook the reader at every try; the writer lives: try again
 */
#ifndef MPSD_STATE_H
#define MPSD_STATE_H

struct mpsd_state;        /* a writer */
struct mpsd_state_reader;

struct mpsd_state_stamp { /* which record it is; of two the later one has the higher generation, then the higher sequence */
	uint64_t generation;
	uint64_t sequence; /* 1 for the writer's first update */
};

/* Creates a memfd, with no update published. schema: text that describes the record's layout, less than MPSD_STATE_SCHEMA_ROOM
 * bytes; NULL: "". generation: the arena's, 1 or more. */
MPSD_API int mpsd_state_create(const char *schema, uint64_t record_bytes, uint64_t generation, struct mpsd_state **out);
/* The memory is gone when all descriptors and mappings are.  In a child after fork too.  NULL is taken. */
MPSD_API void mpsd_state_close(struct mpsd_state *state);
/* Remains the writer's; pass a duplicate to readers (SCM_RIGHTS, fork, pidfd_getfd). */
MPSD_API int mpsd_state_fd(const struct mpsd_state *state);
/* The writer's copy of the record, aligned to a line: write there, mark the changes, publish. Zero at first. */
MPSD_API void *mpsd_state_record(const struct mpsd_state *state);
MPSD_API uint64_t mpsd_state_bytes(const struct mpsd_state *state);
MPSD_API struct mpsd_state_stamp mpsd_state_published(const struct mpsd_state *state); /* sequence 0: nothing yet */
/* The next publish writes these bytes; the first publish writes all. A change that was not marked may be published or not. */
MPSD_API int mpsd_state_changed(struct mpsd_state *state, uint64_t offset, uint64_t bytes);
/* All changes at once: a reader sees every one of them or none.  Its cost is that of the lines that were changed. */
MPSD_API int mpsd_state_publish(struct mpsd_state *state);
/* mpsd_state_changed, then mpsd_state_publish. */
MPSD_API int mpsd_state_update(struct mpsd_state *state, uint64_t offset, uint64_t bytes);
/* Counts the time from is_busy != 0 to is_busy == 0 as work: mpsd's elastic shares follow it.  A repeated call changes nothing. */
MPSD_API int mpsd_state_work(struct mpsd_state *state, int is_busy);

/* fd is borrowed, and may be closed afterwards. schema: must equal the writer's; NULL: any. */
MPSD_API int mpsd_state_open(int fd, const char *schema, uint64_t least_generation, struct mpsd_state_reader **out);
MPSD_API void mpsd_state_reader_close(struct mpsd_state_reader *reader);
/* The record published last; *record is the reader's, and stays as it is until the next read that succeeds. */
MPSD_API int mpsd_state_read(struct mpsd_state_reader *reader, const void **record, struct mpsd_state_stamp *stamp);
/* The sequence of the record published last, unproved; 0: none.  One cache line is looked at. */
MPSD_API uint64_t mpsd_state_latest(const struct mpsd_state_reader *reader);
MPSD_API uint64_t mpsd_state_reader_bytes(const struct mpsd_state_reader *reader);
MPSD_API uint64_t mpsd_state_generation(const struct mpsd_state_reader *reader);
MPSD_API const char *mpsd_state_schema(const struct mpsd_state_reader *reader); /* ended by NUL; the reader's */

#endif
