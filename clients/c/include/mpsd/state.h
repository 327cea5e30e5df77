/* SPDX-License-Identifier: MIT */
/*
 * mpsd/state.h: the forward state: a record in shared host memory that one process publishes at every step, and that another
 * one, which takes over, reads as it was after the last complete step.  Nothing of mpsd and nothing of CUDA is asked.
 *
 * What a writer does is a few stores, never a wait or a system call; it may be killed between any two of them, and the record
 * published last is there.  A reader believes nothing it reads: it ends, after a bounded number of tries, with a whole record
 * as it was published, or with an error.  The layout is in mpsd_state.h.
 *
 * A writer, and a reader, is used by one thread at a time.  Results are 0 or -errno:
 *
 *   -EINVAL           an argument: no record that size, a range outside the record
 *   -ECHILD           the writer is a parent's: after fork, create another
 *   -EPERM            the descriptor is no memfd sealed against shrinking and growing
 *   -EPROTONOSUPPORT  another major version
 *   -EBADMSG          the record is of another schema
 *   -ESTALE           the writer is of an older generation than was asked for
 *   -ENODATA          nothing was published yet
 *   -EPROTO           damaged: somebody else has written there
 *   -EAGAIN           the writer overtook the reader at every try; it lives, and is asked again
 */
#ifndef MPSD_STATE_H
#define MPSD_STATE_H

struct mpsd_state;        /* a writer */
struct mpsd_state_reader;

struct mpsd_state_stamp { /* which record it is; of two the later one has the higher generation, then the higher sequence */
	uint64_t generation;
	uint64_t sequence; /* 1 for the first of its writer */
};

/* A memfd of its own, with nothing published.  schema: text that says what lies where, less than MPSD_STATE_SCHEMA_ROOM bytes;
 * NULL: "".  generation: the arena's, 1 or more. */
MPSD_API int mpsd_state_create(const char *schema, uint64_t record_bytes, uint64_t generation, struct mpsd_state **out);
/* The memory is gone when all descriptors and mappings are.  In a child after fork too.  NULL is taken. */
MPSD_API void mpsd_state_close(struct mpsd_state *state);
/* Stays the writer's: whoever shall read gets a copy of it (SCM_RIGHTS, fork, pidfd_getfd). */
MPSD_API int mpsd_state_fd(const struct mpsd_state *state);
/* The writer's own copy of the record, aligned to a line: write there, say what was changed, publish.  Zero at first. */
MPSD_API void *mpsd_state_record(const struct mpsd_state *state);
MPSD_API uint64_t mpsd_state_bytes(const struct mpsd_state *state);
MPSD_API struct mpsd_state_stamp mpsd_state_published(const struct mpsd_state *state); /* sequence 0: nothing yet */
/* These bytes are written by the next publish; all bytes are by the first.  What was changed and not said may be published or not. */
MPSD_API int mpsd_state_changed(struct mpsd_state *state, uint64_t offset, uint64_t bytes);
/* All changes at once: a reader sees every one of them or none.  Its cost is that of the lines that were changed. */
MPSD_API int mpsd_state_publish(struct mpsd_state *state);
/* mpsd_state_changed, then mpsd_state_publish. */
MPSD_API int mpsd_state_update(struct mpsd_state *state, uint64_t offset, uint64_t bytes);

/* fd is borrowed, and may be closed then.  schema: as the writer must have said it; NULL: any. */
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
