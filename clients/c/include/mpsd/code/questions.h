/* SPDX-License-Identifier: MIT */
/* mpsd/code/questions.h: ownership and settings of an arena, and facts that are known without asking mpsd. */
#ifndef MPSD_CODE_QUESTIONS_H
#define MPSD_CODE_QUESTIONS_H

/* 0, or -ECHILD: then it was not locked, and never can be. */
static inline int mpsd_arena_lock(struct mpsd_arena *arena)
{
	if (getpid() != arena->pid)
		return -ECHILD;
	pthread_mutex_lock(&arena->lock);
	return 0;
}

MPSD_API int mpsd_arena_set_guard(struct mpsd_arena *arena, uint64_t guard_bytes)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	if (guard_bytes > arena->window_bytes / 2) {
		rc = mpsd_fail(arena->session, -EINVAL, 0, 0, "arena %s: guards of %llu bytes in a window of %llu", arena->name,
			       (unsigned long long)guard_bytes, (unsigned long long)arena->window_bytes);
	} else {
		arena->guard_bytes = (guard_bytes + MPSD_GRANULE - 1) / MPSD_GRANULE * MPSD_GRANULE;
		arena->full_before = 0;
	}
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

MPSD_API int mpsd_arena_set_hooks(struct mpsd_arena *arena, const struct mpsd_arena_hooks *hooks)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	memset(&arena->hooks, 0, sizeof(arena->hooks));
	if (hooks)
		arena->hooks = *hooks;
	pthread_mutex_unlock(&arena->lock);
	return 0;
}

MPSD_API uint64_t mpsd_arena_id(const struct mpsd_arena *arena)
{
	return arena->id;
}

MPSD_API uint64_t mpsd_arena_base(const struct mpsd_arena *arena)
{
	return arena->base;
}

MPSD_API uint64_t mpsd_arena_window_bytes(const struct mpsd_arena *arena)
{
	return arena->window_bytes;
}

MPSD_API int mpsd_arena_device(const struct mpsd_arena *arena)
{
	return (int)arena->device;
}

MPSD_API const char *mpsd_arena_gpu(const struct mpsd_arena *arena)
{
	return arena->gpu;
}

MPSD_API struct mpsd_session *mpsd_arena_session(const struct mpsd_arena *arena)
{
	return arena->session;
}

/* One of the numbers under the lock; 0 in a child. */
static inline uint64_t mpsd_arena_number(struct mpsd_arena *arena, const uint64_t *number)
{
	uint64_t value;

	if (mpsd_arena_lock(arena) < 0)
		return 0;
	value = *number;
	pthread_mutex_unlock(&arena->lock);
	return value;
}

MPSD_API uint64_t mpsd_arena_generation(struct mpsd_arena *arena)
{
	return mpsd_arena_number(arena, &arena->generation);
}

MPSD_API uint64_t mpsd_arena_committed(struct mpsd_arena *arena)
{
	return mpsd_arena_number(arena, &arena->commit);
}

MPSD_API uint64_t mpsd_arena_capacity_bytes(struct mpsd_arena *arena)
{
	return mpsd_arena_number(arena, &arena->capacity_bytes);
}

MPSD_API uint64_t mpsd_arena_used_bytes(struct mpsd_arena *arena)
{
	return mpsd_arena_number(arena, &arena->used_bytes);
}

static inline void mpsd_describe(const struct mpsd_arena *arena, const struct mpsd_item *item, struct mpsd_allocation *out)
{
	out->address = arena->base + item->offset;
	out->bytes = item->bytes;
	out->is_committed = (item->flags & MPSD_ITEM_COMMITTED) != 0;
	out->is_adopted = (item->flags & MPSD_ITEM_ADOPTED) != 0;
}

MPSD_API int mpsd_arena_list(struct mpsd_arena *arena, uint64_t after, struct mpsd_allocation *out, int most)
{
	int rc = mpsd_arena_lock(arena), count = 0;
	size_t at;

	if (rc < 0)
		return rc;
	at = after > arena->base ? mpsd_space_find(arena, after - arena->base) : 0;
	for (; at < arena->count && count < most; at++)
		if (!(arena->items[at].flags & MPSD_ITEM_DROPPED) && arena->base + arena->items[at].offset >= after)
			mpsd_describe(arena, &arena->items[at], &out[count++]);
	pthread_mutex_unlock(&arena->lock);
	return count;
}

MPSD_API int mpsd_arena_find(struct mpsd_arena *arena, uint64_t address, struct mpsd_allocation *found)
{
	int rc = mpsd_arena_lock(arena);
	size_t at;

	if (rc < 0)
		return rc;
	rc = -ENOENT;
	at = address < arena->base ? arena->count : mpsd_space_find(arena, address - arena->base);
	if (at < arena->count && arena->items[at].offset <= address - arena->base && !(arena->items[at].flags & MPSD_ITEM_DROPPED)) {
		mpsd_describe(arena, &arena->items[at], found);
		rc = 0;
	}
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

MPSD_API int mpsd_arena_for_each(struct mpsd_arena *arena, int (*each)(void *argument, const struct mpsd_allocation *allocation),
				 void *argument)
{
	struct mpsd_allocation some[64];
	uint64_t after = 0;
	int count, rc = 0;

	do {
		count = mpsd_arena_list(arena, after, some, 64);
		for (int i = 0; i < count && rc == 0; i++) {
			rc = each(argument, &some[i]);
			after = some[i].address + some[i].bytes;
		}
	} while (count == 64 && rc == 0);
	return count < 0 ? count : rc;
}

#endif
