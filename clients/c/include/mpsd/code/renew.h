/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/renew.h: replace the mapped memory by that of a later commit, completely or not at all.
 * All functions are called with the arena's lock held, or before other threads have the arena.
 *
 *   table   A  B  C          A stays as it is, C and B's place are unmapped, then B' and D are mapped; a failure undoes
 *   taken   A  B'    D       this, and an item that cannot be mapped back is removed from the table
 */
#ifndef MPSD_CODE_RENEW_H
#define MPSD_CODE_RENEW_H

/* Marks in the table what is GONE; how many. */
static inline size_t mpsd_mark_gone(struct mpsd_arena *arena, const struct mpsd_taken *taken)
{
	size_t gone = arena->count;

	for (size_t i = 0; i < arena->count; i++)
		arena->items[i].flags |= MPSD_ITEM_GONE;
	for (size_t i = 0; i < taken->count; i++) {
		if (taken->items[i].flags & MPSD_ITEM_NEW)
			continue;
		arena->items[mpsd_space_find(arena, taken->items[i].offset)].flags &= ~(unsigned)MPSD_ITEM_GONE;
		gone--;
	}
	return gone;
}

static inline void mpsd_unmap_item(struct mpsd_arena *arena, const struct mpsd_item *item)
{
	uint64_t address = arena->base + item->offset;

	arena->driver.cuMemUnmap(address, item->bytes);
	if (arena->hooks.after_unmap)
		arena->hooks.after_unmap(arena->hooks.argument, address, item->bytes);
}

/* Without access yet. */
static inline int mpsd_map_item(struct mpsd_arena *arena, const struct mpsd_item *item)
{
	uint64_t address = arena->base + item->offset;
	int rc = 0;

	if (arena->hooks.before_map)
		rc = arena->hooks.before_map(arena->hooks.argument, address, item->bytes);
	if (rc != 0)
		return mpsd_fail(arena->session, rc < 0 ? rc : -EIO, 0, 0, "arena %s: before_map said %d", arena->name, rc);
	rc = mpsd_place_map(arena, item);
	if (rc < 0 && arena->hooks.after_unmap)
		arena->hooks.after_unmap(arena->hooks.argument, address, item->bytes);
	return rc;
}

/* Map all NEW items, with access, or none. */
static inline int mpsd_map_new(struct mpsd_arena *arena, const struct mpsd_taken *taken)
{
	const struct mpsd_item *items = taken->items;
	size_t mapped, from, to;
	int rc = 0;

	for (mapped = 0; mapped < taken->count; mapped++) {
		if (items[mapped].flags & MPSD_ITEM_NEW)
			rc = mpsd_map_item(arena, &items[mapped]);
		if (rc < 0)
			break;
	}
	for (from = 0; rc == 0 && from < taken->count; from = to) { /* one call for what lies without a hole */
		to = from + 1;
		if (!(items[from].flags & MPSD_ITEM_NEW))
			continue;
		while (to < taken->count && items[to].flags & MPSD_ITEM_NEW && items[to - 1].offset + items[to - 1].bytes == items[to].offset)
			to++;
		rc = mpsd_place_allow(arena, items[from].offset, items[to - 1].offset + items[to - 1].bytes - items[from].offset);
	}
	while (rc < 0 && mapped--)
		if (items[mapped].flags & MPSD_ITEM_NEW)
			mpsd_unmap_item(arena, &items[mapped]);
	return rc;
}

/* Map GONE items back where they were. */
static inline void mpsd_map_back(struct mpsd_arena *arena)
{
	struct mpsd_words kept;
	int has_words = mpsd_keep_words(arena->session, &kept);

	for (size_t i = arena->count; i-- > 0;) {
		struct mpsd_item *item = &arena->items[i];

		if (!(item->flags & MPSD_ITEM_GONE))
			continue;
		item->flags &= ~(unsigned)MPSD_ITEM_GONE;
		if (mpsd_map_item(arena, item) == 0) {
			if (mpsd_place_allow(arena, item->offset, item->bytes) == 0)
				continue;
			mpsd_unmap_item(arena, item);
		}
		arena->driver.cuMemRelease(item->handle);
		mpsd_space_remove(arena, i);
		arena->commit = 0; /* the table is that of no commit any more */
	}
	if (has_words)
		mpsd_restore_words(arena->session, &kept);
}

/* The table is what was taken, which is empty then. */
static inline void mpsd_become(struct mpsd_arena *arena, struct mpsd_taken *taken)
{
	for (size_t i = 0; i < arena->count; i++) {
		if (!(arena->items[i].flags & MPSD_ITEM_GONE))
			continue;
		mpsd_space_unkeep(&arena->items[i]);
		arena->driver.cuMemRelease(arena->items[i].handle);
	}
	arena->used_bytes = 0;
	for (size_t i = 0; i < taken->count; i++) {
		taken->items[i].flags &= ~(unsigned)MPSD_ITEM_NEW;
		arena->used_bytes += taken->items[i].bytes;
	}
	free(arena->items);
	free(arena->layout);
	arena->items = taken->items;
	arena->count = taken->count;
	arena->room = taken->room;
	arena->full_before = 0;
	arena->commit = taken->commit;
	arena->layout = taken->layout;
	arena->layout_bytes = taken->layout_bytes;
	taken->items = NULL;
	taken->layout = NULL;
	taken->count = taken->room = 0;
}

/* Map the taken items in place of the current ones. Returns how many allocations came or went; -errno: all is as it was, as far
 * as the driver could restore it. */
static inline int mpsd_renew(struct mpsd_arena *arena, struct mpsd_taken *taken)
{
	size_t gone = mpsd_mark_gone(arena, taken), changed = gone;
	CUresult found = gone ? arena->driver.cuCtxSynchronize() : CUDA_SUCCESS; /* else the GPU may be at work on it */
	int rc;

	if (found != CUDA_SUCCESS) {
		for (size_t i = 0; i < arena->count; i++)
			arena->items[i].flags &= ~(unsigned)MPSD_ITEM_GONE;
		return mpsd_cuda_fail(arena, found, "cuCtxSynchronize", arena->base, 0);
	}
	for (size_t i = 0; i < arena->count && gone; i++)
		if (arena->items[i].flags & MPSD_ITEM_GONE)
			mpsd_unmap_item(arena, &arena->items[i]);
	for (size_t i = 0; i < taken->count; i++)
		changed += (taken->items[i].flags & MPSD_ITEM_NEW) != 0;
	if (changed)
		arena->is_writable = 0; /* what is new is not */
	rc = mpsd_map_new(arena, taken);
	if (rc < 0) {
		mpsd_map_back(arena);
		return rc;
	}
	mpsd_become(arena, taken);
	return (int)changed;
}

#endif
