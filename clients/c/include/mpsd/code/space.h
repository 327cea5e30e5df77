/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/space.h: the state of an arena, and the places of its window that are taken.  No I/O.
 *
 *   WAITING --put--> given --commit--> COMMITTED          a place that is free()d:
 *      WAITING              is forgotten at once, or, if SENT, when mpsd has answered
 *      given                DROPPED | UNTOLD, until mpsd is informed
 *      COMMITTED            the same, and then DROPPED until the next commit: an adopter would still get it
 */
#ifndef MPSD_CODE_SPACE_H
#define MPSD_CODE_SPACE_H

#ifndef MPSD_BATCH
#define MPSD_BATCH 64 /* waiting items are sent when this many have accumulated */
#endif

enum {
	MPSD_ITEM_COMMITTED = 1,
	MPSD_ITEM_ADOPTED = 2,
	MPSD_ITEM_DROPPED = 4, /* not mapped any more, and without a handle */
	MPSD_ITEM_UNTOLD = 8,  /* of a dropped one */
	MPSD_ITEM_LOST = 16,   /* mpsd's keeper died: it has to be given again */
	MPSD_ITEM_NEW = 32,    /* taken, and not in the arena's table yet */
	MPSD_ITEM_GONE = 64,   /* in the table, and not in what was taken */
	MPSD_ITEM_SENT = 128,  /* a waiting item: sent to mpsd, not answered yet */
};
#define MPSD_PROMPT_BYTES ((uint64_t)256 << 20) /* the most dropped memory that mpsd does not know to be dropped */

struct mpsd_item {
	uint64_t offset;
	uint64_t bytes;
	CUmemGenericAllocationHandle handle;
	int fd;   /* of one that is WAITING, for mpsd; else -1 */
	int kept; /* that it came with: the driver exports nothing that was imported; else -1 */
	unsigned flags;
};

struct mpsd_arena { /* up to device: written by open alone */
	struct mpsd_session *session;
	struct mpsd_driver driver;
	pid_t pid;
	char name[129];
	char gpu[64];
	uint64_t id;
	uint64_t base;
	uint64_t window_bytes;
	CUdevice device;

	pthread_mutex_t lock; /* protects all below; calls to mpsd and to the driver are made under it */
	int is_reserved;
	enum mpsd_access access;
	int is_writable; /* of a reader: all that is mapped can be written already */
	int is_sealed;
	uint64_t generation;
	uint64_t capacity_bytes;
	uint64_t used_bytes; /* of items, the dropped ones too */
	uint64_t guard_bytes;
	struct mpsd_arena_hooks hooks;
	struct mpsd_item *items; /* by offset; they do not overlap */
	size_t count;
	size_t room;
	size_t full_before; /* no place between the items before this one fits anything */
	unsigned waiting; /* items with a descriptor */
	unsigned sent;    /* of these; 0: the session owes us no answer */
	int is_refused;   /* the last put was: the next one is waited for */
	unsigned lost;    /* items that are LOST */
	unsigned untold;
	uint64_t untold_bytes;
	double quiet_until; /* CLOCK_MONOTONIC: mpsd could not be reached; until then it is asked only if that is necessary */
	uint64_t commit; /* what the items were as of; mpsd counts them; 0: not known, or none */
	void *layout;    /* of that commit, or of a later one of this process */
	size_t layout_bytes;
	int is_layout_lost; /* mpsd has it no more */
	int state;          /* of this writer, a copy; -1: none */
	int is_state_lost;  /* mpsd has it no more: it goes with the next commit */
	uint64_t state_serial; /* since it went with one; 0: it did not */
	int is_torn;        /* of the last commit, which mpsd has lost, not all is here: it waits for another one */
};

/* The first item that ends behind `offset`. */
static inline size_t mpsd_space_find(const struct mpsd_arena *arena, uint64_t offset)
{
	size_t low = 0, high = arena->count, middle;

	while (low < high) {
		middle = (low + high) / 2;
		if (arena->items[middle].offset + arena->items[middle].bytes <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The allocation that begins at an address, or NULL. */
static inline struct mpsd_item *mpsd_space_at(const struct mpsd_arena *arena, uint64_t address)
{
	size_t at = mpsd_space_find(arena, address - arena->base);

	if (address < arena->base || at == arena->count || arena->items[at].offset != address - arena->base ||
	    arena->items[at].flags & MPSD_ITEM_DROPPED)
		return NULL;
	return &arena->items[at];
}

/* So that one more can be inserted without failing.  0 or -ENOMEM. */
static inline int mpsd_space_prepare(struct mpsd_arena *arena)
{
	size_t more = arena->room ? arena->room * 2 : 64;
	void *grown;

	if (arena->count < arena->room)
		return 0;
	grown = realloc(arena->items, more * sizeof(*arena->items));
	if (!grown)
		return -ENOMEM;
	arena->items = (struct mpsd_item *)grown;
	arena->room = more;
	return 0;
}

/* After mpsd_space_prepare(). */
static inline void mpsd_space_insert(struct mpsd_arena *arena, const struct mpsd_item *item)
{
	size_t at = mpsd_space_find(arena, item->offset);

	memmove(&arena->items[at + 1], &arena->items[at], (arena->count - at) * sizeof(*item));
	arena->items[at] = *item;
	arena->count++;
	arena->used_bytes += item->bytes;
	arena->waiting += item->fd >= 0;
}

/* It will not be given again. */
static inline void mpsd_space_unkeep(struct mpsd_item *item)
{
	if (item->kept >= 0)
		close(item->kept);
	item->kept = -1;
}

static inline void mpsd_space_unkeep_all(struct mpsd_arena *arena)
{
	for (size_t i = 0; i < arena->count; i++)
		mpsd_space_unkeep(&arena->items[i]);
}

static inline void mpsd_space_remove(struct mpsd_arena *arena, size_t at)
{
	struct mpsd_item *item = &arena->items[at];

	arena->used_bytes -= item->bytes;
	if (item->fd >= 0) {
		close(item->fd);
		arena->waiting--;
	}
	mpsd_space_unkeep(item);
	arena->lost -= (item->flags & MPSD_ITEM_LOST) != 0;
	if (item->flags & MPSD_ITEM_UNTOLD) {
		arena->untold--;
		arena->untold_bytes -= item->bytes;
	}
	arena->count--;
	memmove(item, item + 1, (arena->count - at) * sizeof(*item));
	if (arena->full_before > at)
		arena->full_before = at;
}

/* The lowest place with `guard_bytes` free on either side.  0 or -ENOSPC. */
static inline int mpsd_space_choose(struct mpsd_arena *arena, uint64_t bytes, uint64_t *offset)
{
	uint64_t guard = arena->guard_bytes, from, until, least = MPSD_GRANULE + 2 * guard;
	size_t at = arena->full_before;
	int is_full = 1;

	if (bytes > arena->window_bytes || guard > arena->window_bytes)
		return -ENOSPC;
	for (; at <= arena->count; at++) {
		from = at ? arena->items[at - 1].offset + arena->items[at - 1].bytes : 0;
		until = at < arena->count ? arena->items[at].offset : arena->window_bytes;
		if (until - from >= bytes + 2 * guard) {
			*offset = from + guard;
			return 0;
		}
		is_full = is_full && until - from < least;
		if (is_full && at < arena->count)
			arena->full_before = at + 1;
	}
	return -ENOSPC;
}

/* From an item on: how many are mapped one behind the other without a hole; 0: no more.  *from is moved over dropped ones. */
static inline size_t mpsd_space_run(const struct mpsd_arena *arena, size_t *from)
{
	size_t to;

	while (*from < arena->count && arena->items[*from].flags & MPSD_ITEM_DROPPED)
		++*from;
	if (*from == arena->count)
		return 0;
	for (to = *from + 1; to < arena->count && !(arena->items[to].flags & MPSD_ITEM_DROPPED); to++)
		if (arena->items[to - 1].offset + arena->items[to - 1].bytes != arena->items[to].offset)
			break;
	return to - *from;
}

/* The bytes of such a run. */
static inline uint64_t mpsd_space_run_bytes(const struct mpsd_arena *arena, size_t from, size_t count)
{
	const struct mpsd_item *last = &arena->items[from + count - 1];

	return last->offset + last->bytes - arena->items[from].offset;
}

#endif
