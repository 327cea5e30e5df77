/* SPDX-License-Identifier: MIT */
/* mpsd/code/alloc.h: memory that comes and goes.  All is called with the arena's lock held. */
#ifndef MPSD_CODE_ALLOC_H
#define MPSD_CODE_ALLOC_H

#define MPSD_QUIET_SECONDS 30.0

static inline int mpsd_give_op(struct mpsd_arena *arena, const void *argument)
{
	(void)argument;
	return mpsd_give(arena);
}

static inline int mpsd_send_op(struct mpsd_arena *arena, const void *argument)
{
	(void)argument;
	return mpsd_send(arena);
}

static inline int mpsd_finish_op(struct mpsd_arena *arena, const void *argument)
{
	(void)argument;
	return mpsd_finish_sent(arena);
}

static inline int mpsd_drops_op(struct mpsd_arena *arena, const void *argument)
{
	(void)argument;
	return mpsd_give_drops(arena);
}

/* 0, -EACCES, -EROFS. */
static inline int mpsd_may_write(struct mpsd_arena *arena, const char *what)
{
	if (arena->is_sealed)
		return mpsd_fail(arena->session, -EROFS, 0, 0, "arena %s is sealed: %s", arena->name, what);
	if (arena->access != MPSD_WRITE)
		return mpsd_fail(arena->session, -EACCES, 0, 0, "arena %s is open for reading: %s", arena->name, what);
	return 0;
}

/* A place, within the capacity.  Others may have changed the capacity since we asked. */
static inline int mpsd_find_place(struct mpsd_arena *arena, uint64_t bytes, uint64_t *offset)
{
	struct mpsd_facts facts;
	int rc = mpsd_space_prepare(arena);

	if (rc < 0)
		return mpsd_fail(arena->session, rc, 0, 0, "arena %s: no memory", arena->name);
	if (arena->used_bytes + bytes > arena->capacity_bytes && arena->untold)
		mpsd_settle(arena, mpsd_drops_op, NULL);
	if (arena->used_bytes + bytes > arena->capacity_bytes &&
	    mpsd_ask_by_name(arena->session, "arena.get", arena->name, &facts) == 0 && facts.id == arena->id)
		arena->capacity_bytes = facts.capacity_bytes;
	if (arena->used_bytes + bytes > arena->capacity_bytes)
		return mpsd_fail(arena->session, -ENOSPC, 0, 0,
				 "arena %s: %llu bytes more are over its capacity: %llu of %llu are used", arena->name,
				 (unsigned long long)bytes, (unsigned long long)arena->used_bytes,
				 (unsigned long long)arena->capacity_bytes);
	rc = mpsd_space_choose(arena, bytes, offset);
	if (rc < 0 && arena->untold && mpsd_settle(arena, mpsd_drops_op, NULL) == 0)
		rc = mpsd_space_choose(arena, bytes, offset);
	if (rc < 0)
		return mpsd_fail(arena->session, rc, 0, 0, "arena %s: no %llu bytes in one piece are left in its window of %llu",
				 arena->name, (unsigned long long)bytes, (unsigned long long)arena->window_bytes);
	return 0;
}

/* mpsd evicts arenas that no process holds, as its policy allows. The result does not matter: the driver is asked again. */
static inline void mpsd_ask_for_room(struct mpsd_arena *arena, uint64_t bytes)
{
	unsigned char params[160];
	struct mpsd_pack pack;

	mpsd_pack_begin(&pack, params, sizeof(params));
	mpsd_pack_map(&pack, 2);
	mpsd_pack_text(&pack, "gpu");
	mpsd_pack_text(&pack, arena->gpu);
	mpsd_pack_text(&pack, "bytes");
	mpsd_pack_uint(&pack, bytes);
	mpsd_call(arena->session, "arena.make_room", params, pack.used, NULL, 0, 1, 0, NULL);
}

/* If memory is short, mpsd is asked for room once. */
static inline int mpsd_create(struct mpsd_arena *arena, uint64_t bytes, struct mpsd_item *item)
{
	CUresult found = mpsd_place_create(arena, bytes, &item->handle);

	if (found == CUDA_ERROR_OUT_OF_MEMORY) {
		if (arena->untold)
			mpsd_settle(arena, mpsd_drops_op, NULL);
		mpsd_ask_for_room(arena, bytes);
		found = mpsd_place_create(arena, bytes, &item->handle);
	}
	return found == CUDA_SUCCESS ? 0 : mpsd_cuda_fail(arena, found, "cuMemCreate", arena->base + item->offset, bytes);
}

/* Create, map, give access and export; on failure undo all of them. */
static inline int mpsd_fill_place(struct mpsd_arena *arena, struct mpsd_item *item)
{
	uint64_t address = arena->base + item->offset;
	int rc = mpsd_create(arena, item->bytes, item);

	if (rc < 0)
		return rc;
	if (arena->hooks.before_map) {
		rc = arena->hooks.before_map(arena->hooks.argument, address, item->bytes);
		if (rc != 0)
			rc = mpsd_fail(arena->session, rc < 0 ? rc : -EIO, 0, 0, "arena %s: before_map said %d", arena->name, rc);
	}
	if (rc == 0) {
		rc = mpsd_place_map(arena, item);
		if (rc == 0) {
			rc = mpsd_place_allow(arena, item->offset, item->bytes);
			if (rc == 0)
				rc = mpsd_place_export(arena, item);
			if (rc < 0)
				arena->driver.cuMemUnmap(address, item->bytes);
		}
		if (rc < 0 && arena->hooks.after_unmap)
			arena->hooks.after_unmap(arena->hooks.argument, address, item->bytes);
	}
	if (rc < 0)
		arena->driver.cuMemRelease(item->handle);
	else
		item->fd = rc;
	return rc < 0 ? rc : 0;
}

static inline int mpsd_alloc_locked(struct mpsd_arena *arena, uint64_t bytes, uint64_t *address)
{
	struct mpsd_item item;
	int rc = mpsd_may_write(arena, "nothing can be allocated");

	if (rc < 0)
		return rc;
	if (!bytes || bytes > arena->window_bytes)
		return mpsd_fail(arena->session, bytes ? -ENOSPC : -EINVAL, 0, 0, "arena %s: %llu bytes, in a window of %llu",
				 arena->name, (unsigned long long)bytes, (unsigned long long)arena->window_bytes);
	if (arena->waiting - arena->sent >= MPSD_BATCH) /* before anything is done: what cannot be given must not become more */
		rc = mpsd_settle(arena, mpsd_send_op, NULL);
	memset(&item, 0, sizeof(item));
	item.kept = -1;
	item.bytes = (bytes + MPSD_GRANULE - 1) / MPSD_GRANULE * MPSD_GRANULE;
	if (rc == 0)
		rc = mpsd_find_place(arena, item.bytes, &item.offset);
	if (rc == 0)
		rc = mpsd_fill_place(arena, &item);
	if (rc < 0)
		return rc;
	mpsd_space_insert(arena, &item);
	*address = arena->base + item.offset;
	return 0;
}

/* The item is removed here; mpsd is informed soon, or later if it cannot be reached now. */
static inline void mpsd_drop_item(struct mpsd_arena *arena, struct mpsd_item *item)
{
	if (item->fd >= 0 || item->flags & MPSD_ITEM_LOST) { /* mpsd has it not */
		arena->is_torn = arena->is_torn || item->flags & MPSD_ITEM_COMMITTED;
		mpsd_space_remove(arena, (size_t)(item - arena->items));
		return;
	}
	mpsd_space_unkeep(item); /* it would keep the memory */
	item->flags |= MPSD_ITEM_DROPPED | MPSD_ITEM_UNTOLD;
	arena->untold++;
	arena->untold_bytes += item->bytes;
	if ((arena->untold < MPSD_BATCH && arena->untold_bytes < MPSD_PROMPT_BYTES) || mpsd_now() < arena->quiet_until)
		return;
	if (mpsd_settle(arena, mpsd_drops_op, NULL) < 0)
		arena->quiet_until = mpsd_now() + MPSD_QUIET_SECONDS;
}

static inline int mpsd_free_locked(struct mpsd_arena *arena, uint64_t address)
{
	int rc = mpsd_may_write(arena, "nothing can be freed");
	struct mpsd_item *item = mpsd_space_at(arena, address);
	CUresult found;

	if (rc < 0)
		return rc;
	if (item && item->flags & MPSD_ITEM_SENT) { /* whether mpsd has it is known then */
		mpsd_settle(arena, mpsd_finish_op, NULL);
		item = mpsd_space_at(arena, address);
	}
	if (!item)
		return mpsd_fail(arena->session, -ENOENT, 0, 0, "arena %s: no allocation begins at 0x%llx", arena->name,
				 (unsigned long long)address);
	found = arena->driver.cuMemUnmap(address, item->bytes);
	if (found != CUDA_SUCCESS)
		return mpsd_cuda_fail(arena, found, "cuMemUnmap", address, item->bytes);
	arena->driver.cuMemRelease(item->handle);
	if (arena->hooks.after_unmap)
		arena->hooks.after_unmap(arena->hooks.argument, address, item->bytes);
	mpsd_drop_item(arena, item);
	return 0;
}

#endif
