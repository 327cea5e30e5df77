/* SPDX-License-Identifier: MIT */
/*
 * mpsd/arena.h: arenas: GPU memory that outlives this process, at addresses that are the same in every process.
 *
 * All allocations lie in the arena's window, which mpsd assigned.  A process that opens the arena gets the last commit; memory
 * that was not committed is lost with its process.  Opening, allocating, freeing and closing need a current context on the
 * arena's GPU.  Any thread may make any call.  Results are those of session.h, and
 *
 *   -EADDRINUSE    another mapping of this process lies in the window; the error text names it
 *   -EXDEV         the current context is on another GPU
 *   -EBADMSG       a descriptor is not GPU memory, or not of the arena's size
 *   -EIO           another call of the driver failed; mpsd_error_cuda() returns its code
 *
 * The process keeps one descriptor of each allocation that came with open or refresh, below half of RLIMIT_NOFILE (docs/c.md).
 * A refusal of the quota (-ENOSPC) comes with flush, commit, or a later alloc; the allocated memory stays and waits.
 * CUDA has no read-only export: read access is mapped read-only by this library, which is a convention and not a protection.
 */
#ifndef MPSD_ARENA_H
#define MPSD_ARENA_H

enum mpsd_access { MPSD_READ = 0, MPSD_WRITE = 1 };

enum {
	MPSD_GRANULE = 2097152,      /* bytes; all sizes and places are multiples of it */
	MPSD_LAYOUT_BYTES = 16777216 /* the largest layout */
};

struct mpsd_arena;

struct mpsd_arena_options {
	const char *gpu;         /* ordinal or UUID; NULL: "0" */
	uint64_t capacity_bytes;
	uint64_t window_bytes;   /* 0: mpsd chooses */
	unsigned mode;           /* as of a file; 0: 0600 */
	double ttl_seconds;      /* how long mpsd keeps it while no process holds it; 0: until it is removed */
};

struct mpsd_allocation {
	uint64_t address;
	uint64_t bytes;
	int is_committed;
	int is_adopted; /* it came with open */
};

/* Called with the arena's lock held: they must not call back.  address, bytes: of the memory alone, without guards. */
struct mpsd_arena_hooks {
	int (*before_map)(void *argument, uint64_t address, uint64_t bytes); /* not 0: -errno, and nothing is mapped */
	void (*after_unmap)(void *argument, uint64_t address, uint64_t bytes);
	void *argument;
};

/* 0; -EEXIST: an arena has this name. */
MPSD_API int mpsd_arena_create(struct mpsd_session *session, const char *name, const struct mpsd_arena_options *options);
MPSD_API int mpsd_arena_remove(struct mpsd_session *session, const char *name);

/* Everything that is committed is mapped, or nothing.  wait_seconds: for another writer to go (up to 3600).  The driver's table
 * is copied.  One question to mpsd, and another for each 128 allocations beyond the first 127. */
MPSD_API int mpsd_arena_open(struct mpsd_session *session, const struct mpsd_driver *driver, const char *name,
			     enum mpsd_access access, double wait_seconds, struct mpsd_arena **out);
/* The same where no context is current yet: enter is called when the arena's GPU is known, before anything is mapped, and makes
 * one of that GPU (a UUID) current; it may be called more than once.  Not 0: -errno, and nothing is opened. */
MPSD_API int mpsd_arena_open_on(struct mpsd_session *session, const struct mpsd_driver *driver, const char *name,
				enum mpsd_access access, double wait_seconds, int (*enter)(void *argument, const char *gpu), void *argument,
				struct mpsd_arena **out);
/* Unmaps all memory, frees the window, and returns access to mpsd. The arena handle is invalid afterwards, whatever the result.
 * NULL is accepted. */
MPSD_API int mpsd_arena_close(struct mpsd_arena *arena);
/* Frees the memory of the process alone: where the context is dead, and in a child after fork. */
MPSD_API void mpsd_arena_forget(struct mpsd_arena *arena);

/* The lowest place that fits.  bytes: rounded up.  -ENOSPC: over the capacity, or no place in the window. */
MPSD_API int mpsd_arena_alloc(struct mpsd_arena *arena, uint64_t bytes, uint64_t *address);
/* address: of an allocation, as alloc or open returned it. The GPU must have finished with it. -ENOENT: no allocation begins
 * there. */
MPSD_API int mpsd_arena_free(struct mpsd_arena *arena, uint64_t address);
/* Gives mpsd what waits to be given; without it that happens in batches. */
MPSD_API int mpsd_arena_flush(struct mpsd_arena *arena);
/* Commits all current allocations and the layout atomically. layout NULL: the layout stays. */
MPSD_API int mpsd_arena_commit(struct mpsd_arena *arena, const void *layout, size_t bytes);
/* The layout of the mapped commit: the last one of this writer, or the one that open or refresh found. The caller frees *bytes
 * with free(); NULL and 0 if the commit has no layout. */
MPSD_API int mpsd_arena_layout(struct mpsd_arena *arena, void **bytes, size_t *count);
/* Makes the committed memory read-only for good, for every process, and maps it read-only here. -EBUSY: some memory is not
 * committed. */
MPSD_API int mpsd_arena_seal(struct mpsd_arena *arena);

/* For a reader: maps newly committed memory, and unmaps removed memory once the GPU has finished with it. On failure all stays
 * as it was, as far as the driver can restore it. Returns how many allocations came or went, plus one if the layout changed; 0:
 * no change. Also for a writer without uncommitted changes (else -EBUSY). */
MPSD_API int mpsd_arena_refresh(struct mpsd_arena *arena);
/* For a reader that may be promoted: makes its mapped memory writable in advance, so that the promotion does not wait for the
 * driver, which takes 20 to 280 ms for this while it handles a fault. It remains a reader and must not write: the GPU no longer
 * refuses its writes. Call it again after each refresh, for newly mapped memory. Returns the previous value: 1, which is always
 * a writer's, or 0; -EROFS: the arena is sealed. */
MPSD_API int mpsd_arena_set_writable(struct mpsd_arena *arena, int is_writable);
/* mpsd has made this process the writer, of this generation: what is mapped can be written.  mpsd is not asked; that the last
 * commit is mapped is the caller's care (refresh).  On failure it is a reader still.  -ESTALE: it is at a later generation. */
MPSD_API int mpsd_arena_promoted(struct mpsd_arena *arena, uint64_t generation);
/* The forward state of this writer (state.h), which arena.keep_state has given to mpsd or will. If mpsd's keeper dies, the
 * library gives state and memory to mpsd again, both or neither. fd: stays the caller's; -1: no state. Forgotten when this
 * process stops being the writer. */
MPSD_API int mpsd_arena_set_state(struct mpsd_arena *arena, int fd);
/* Checks that mpsd has the committed memory, and gives it again, with the state, if mpsd's keeper has died. *state_serial: that
 * of the state given again, by this call or an earlier one; else 0. -EBUSY: memory of the last commit has been freed since;
 * call again after the next commit. -ESTALE: this process is no longer the writer. */
MPSD_API int mpsd_arena_restore(struct mpsd_arena *arena, uint64_t *state_serial);
/* Gives up writing, before the request service.yielded: waits for the GPU; then this process cannot write here. -EBUSY: some
 * memory is not committed. After a failure it is still the writer. For a reader: 0. */
MPSD_API int mpsd_arena_yielded(struct mpsd_arena *arena);
/* mpsd has given the arena another name: it serves in place of one on a GPU that was lost (service.replicate). */
MPSD_API int mpsd_arena_renamed(struct mpsd_arena *arena, const char *name);

/* Left free on either side of each further allocation; rounded up to MPSD_GRANULE. */
MPSD_API int mpsd_arena_set_guard(struct mpsd_arena *arena, uint64_t guard_bytes);
MPSD_API int mpsd_arena_set_hooks(struct mpsd_arena *arena, const struct mpsd_arena_hooks *hooks); /* copied; NULL: none */

MPSD_API uint64_t mpsd_arena_id(const struct mpsd_arena *arena);
MPSD_API uint64_t mpsd_arena_base(const struct mpsd_arena *arena);
MPSD_API uint64_t mpsd_arena_window_bytes(const struct mpsd_arena *arena);
MPSD_API int mpsd_arena_device(const struct mpsd_arena *arena);          /* CUdevice */
MPSD_API uint64_t mpsd_arena_generation(struct mpsd_arena *arena);       /* of this writer, or of the last one */
MPSD_API uint64_t mpsd_arena_committed(struct mpsd_arena *arena);        /* the number of what is mapped; 0: none, or not known */
MPSD_API uint64_t mpsd_arena_capacity_bytes(struct mpsd_arena *arena);
MPSD_API uint64_t mpsd_arena_used_bytes(struct mpsd_arena *arena);       /* as it counts against the capacity */
MPSD_API const char *mpsd_arena_gpu(const struct mpsd_arena *arena);     /* its UUID */
MPSD_API struct mpsd_session *mpsd_arena_session(const struct mpsd_arena *arena);
/* The allocation that an address lies in.  0 or -ENOENT. */
MPSD_API int mpsd_arena_find(struct mpsd_arena *arena, uint64_t address, struct mpsd_allocation *found);
/* In the order of addresses, from `after` on (0: the first): up to `most` of them.  How many. */
MPSD_API int mpsd_arena_list(struct mpsd_arena *arena, uint64_t after, struct mpsd_allocation *out, int most);
/* Each is called with a copy, without a lock; what is not 0 ends it and is the result. */
MPSD_API int mpsd_arena_for_each(struct mpsd_arena *arena, int (*each)(void *argument, const struct mpsd_allocation *allocation),
				 void *argument);

#endif
