/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/give.h: report allocations, frees and commits to mpsd. All functions are called with the arena's lock held.
 */
#ifndef MPSD_CODE_GIVE_H
#define MPSD_CODE_GIVE_H

/* -- what was dropped ----------------------------------------------------------------------------------------------- */

/* After mpsd was informed: forget removed items that were not committed; the others go with the next commit. */
static inline void mpsd_told(struct mpsd_arena *arena, const uint64_t *offsets, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		size_t at = mpsd_space_find(arena, offsets[i]);
		struct mpsd_item *item = &arena->items[at];

		if (!(item->flags & MPSD_ITEM_COMMITTED)) {
			mpsd_space_remove(arena, at);
			continue;
		}
		item->flags &= ~(unsigned)MPSD_ITEM_UNTOLD;
		arena->untold--;
		arena->untold_bytes -= item->bytes;
	}
}

static inline int mpsd_give_drops(struct mpsd_arena *arena)
{
	unsigned char bytes[128 + 10 * MPSD_DESCRIPTORS];
	uint64_t offsets[MPSD_DESCRIPTORS];
	struct mpsd_pack pack;
	unsigned count;
	int rc;

	while (arena->untold) {
		count = 0;
		for (size_t i = 0; i < arena->count && count < MPSD_DESCRIPTORS; i++)
			if (arena->items[i].flags & MPSD_ITEM_UNTOLD)
				offsets[count++] = arena->items[i].offset;
		mpsd_pack_arena(&pack, bytes, sizeof(bytes), arena->id, arena->generation, 1);
		mpsd_pack_text(&pack, "offsets");
		mpsd_pack_array(&pack, count);
		for (unsigned i = 0; i < count; i++)
			mpsd_pack_uint(&pack, offsets[i]);
		rc = mpsd_call(arena->session, "arena.drop", bytes, pack.used, NULL, 0, 1, 0, NULL);
		if (rc < 0)
			return rc;
		mpsd_told(arena, offsets, count);
	}
	return 0;
}

/* -- what was allocated --------------------------------------------------------------------------------------------- */

/* The next ones that are to be given, and their descriptors; those of LOST ones are made now, as many as may be open.  How many,
 * or -errno: not one. */
static inline int mpsd_gather(struct mpsd_arena *arena, unsigned wanted, size_t *from, size_t *places, int *fds)
{
	struct mpsd_item *item;
	int count = 0, fd;

	for (; *from < arena->count && count < MPSD_DESCRIPTORS; ++*from) {
		item = &arena->items[*from];
		if ((item->fd < 0 && !(item->flags & MPSD_ITEM_LOST)) || (item->flags & wanted) != wanted)
			continue;
		if (item->fd < 0) {
			fd = mpsd_place_export(arena, item);
			if (fd < 0)
				return count ? count : fd;
			item->fd = fd;
			arena->waiting++;
		}
		places[count] = *from;
		fds[count++] = item->fd;
	}
	return count;
}

static inline void mpsd_given(struct mpsd_arena *arena, struct mpsd_item *item)
{
	close(item->fd);
	item->fd = -1;
	arena->waiting--;
	arena->lost -= (item->flags & MPSD_ITEM_LOST) != 0;
	item->flags &= ~(unsigned)MPSD_ITEM_LOST;
}

static inline void mpsd_pack_puts(const struct mpsd_arena *arena, struct mpsd_pack *pack, void *bytes, size_t room,
				  const size_t *places, int count)
{
	mpsd_pack_arena(pack, bytes, room, arena->id, arena->generation, 1);
	mpsd_pack_text(pack, "allocations");
	mpsd_pack_array(pack, (uint32_t)count);
	for (int i = 0; i < count; i++) {
		mpsd_pack_array(pack, 2);
		mpsd_pack_uint(pack, arena->items[places[i]].offset);
		mpsd_pack_uint(pack, arena->items[places[i]].bytes);
	}
}

/* Send SENT items once more: mpsd may or may not have them, and their place may be reused. */
static inline int mpsd_send_again(struct mpsd_arena *arena)
{
	unsigned char bytes[128 + 20 * MPSD_DESCRIPTORS];
	size_t places[MPSD_DESCRIPTORS], from = 0;
	int fds[MPSD_DESCRIPTORS], count = mpsd_gather(arena, MPSD_ITEM_SENT, &from, places, fds);
	struct mpsd_pack pack;

	if (count <= 0)
		return count;
	mpsd_pack_puts(arena, &pack, bytes, sizeof(bytes), places, count);
	return mpsd_call(arena->session, "arena.put", bytes, pack.used, fds, (unsigned)count, 1, 0, NULL);
}

/* The answer to what was SENT: it was given, or waits again.  -errno: mpsd refused it. */
static inline int mpsd_finish_sent(struct mpsd_arena *arena)
{
	int rc;

	if (!arena->sent)
		return 0;
	rc = mpsd_outcome(arena->session, NULL);
	if (rc == -ECONNRESET)
		rc = mpsd_send_again(arena);
	for (size_t i = 0; i < arena->count && arena->sent; i++) {
		struct mpsd_item *item = &arena->items[i];

		if (!(item->flags & MPSD_ITEM_SENT))
			continue;
		item->flags &= ~(unsigned)MPSD_ITEM_SENT;
		arena->sent--;
		if (rc == 0)
			mpsd_given(arena, item);
	}
	arena->is_refused = rc < 0;
	return rc;
}

/* wanted: only those that have these flags; 0: all. */
static inline int mpsd_give_puts(struct mpsd_arena *arena, unsigned wanted)
{
	unsigned char bytes[128 + 20 * MPSD_DESCRIPTORS];
	size_t places[MPSD_DESCRIPTORS], from = 0;
	int fds[MPSD_DESCRIPTORS], count, rc = mpsd_finish_sent(arena);
	struct mpsd_pack pack;

	while (rc == 0 && (arena->waiting || arena->lost)) {
		count = mpsd_gather(arena, wanted, &from, places, fds);
		if (count <= 0)
			return count;
		mpsd_pack_puts(arena, &pack, bytes, sizeof(bytes), places, count);
		rc = mpsd_call(arena->session, "arena.put", bytes, pack.used, fds, (unsigned)count, 1, 0, NULL);
		for (int i = 0; rc == 0 && i < count; i++)
			mpsd_given(arena, &arena->items[places[i]]);
		arena->is_refused = rc < 0;
	}
	return rc;
}

/* Drops first: their places may be those of what was allocated since. */
static inline int mpsd_give(struct mpsd_arena *arena)
{
	int rc = mpsd_give_drops(arena);

	return rc < 0 ? rc : mpsd_give_puts(arena, 0);
}

/* The same, but what waits is only sent, if that can be: mpsd is at work on it while more is allocated. */
static inline int mpsd_send(struct mpsd_arena *arena)
{
	unsigned char bytes[128 + 20 * MPSD_DESCRIPTORS];
	size_t places[MPSD_DESCRIPTORS], from = 0;
	int fds[MPSD_DESCRIPTORS], count, rc = mpsd_finish_sent(arena);
	struct mpsd_pack pack;

	if (rc == 0)
		rc = mpsd_give_drops(arena);
	if (rc < 0)
		return rc;
	if (arena->is_refused)
		return mpsd_give_puts(arena, 0);
	count = mpsd_gather(arena, 0, &from, places, fds);
	if (count <= 0)
		return count;
	mpsd_pack_puts(arena, &pack, bytes, sizeof(bytes), places, count);
	if (mpsd_call_soon(arena->session, "arena.put", bytes, pack.used, fds, (unsigned)count) < 0)
		return mpsd_give_puts(arena, 0);
	for (int i = 0; i < count; i++)
		arena->items[places[i]].flags |= MPSD_ITEM_SENT;
	arena->sent = (unsigned)count;
	return 0;
}

/* -- commit --------------------------------------------------------------------------------------------------------- */

/* A descriptor, or -errno with words. */
static inline int mpsd_layout_file(struct mpsd_arena *arena, const void *layout, size_t bytes)
{
	int fd = mpsd_file_fits(bytes) ? memfd_create("mpsd-layout", MFD_CLOEXEC) : -1;
	size_t done = 0;
	ssize_t wrote;

	while (fd >= 0 && done < bytes) {
		wrote = pwrite(fd, (const char *)layout + done, bytes - done, (off_t)done);
		if (wrote > 0) {
			done += (size_t)wrote;
		} else if (wrote == 0 || errno != EINTR) {
			close(fd);
			fd = -1;
		}
	}
	return fd >= 0 ? fd : mpsd_fail(arena->session, -ENOMEM, 0, 0, "arena %s: no memory file of %zu bytes for the layout",
					arena->name, bytes);
}

/* Commit the given memory, with the state if mpsd has lost it. layout NULL: mpsd keeps the layout it has. */
static inline int mpsd_tell_commit(struct mpsd_arena *arena, const void *layout, size_t layout_bytes)
{
	unsigned char bytes[128];
	struct mpsd_answer answer;
	struct mpsd_pack pack;
	int fds[2], count = 0, fd = -1, rc;

	if (layout) {
		fd = mpsd_layout_file(arena, layout, layout_bytes);
		if (fd < 0)
			return fd;
		fds[count++] = fd;
	}
	if (arena->is_state_lost)
		fds[count++] = arena->state;
	mpsd_pack_arena(&pack, bytes, sizeof(bytes), arena->id, arena->generation, arena->is_state_lost ? 2 : 1);
	mpsd_pack_text(&pack, "has_layout");
	mpsd_pack_bool(&pack, fd >= 0);
	if (arena->is_state_lost) {
		mpsd_pack_text(&pack, "has_state");
		mpsd_pack_bool(&pack, 1);
	}
	rc = mpsd_call(arena->session, "arena.commit", bytes, pack.used, fds, (unsigned)count, 1, 0, &answer);
	if (fd >= 0)
		close(fd);
	if (rc < 0)
		return rc;
	if (mpsd_unpack_find_uint(&answer.result, "commit", &arena->commit) < 0 ||
	    (arena->is_state_lost && mpsd_unpack_find_uint(&answer.result, "state_serial", &arena->state_serial) < 0))
		rc = mpsd_broken(arena->session, "arena.commit", "it has no number");
	else
		arena->is_state_lost = 0;
	mpsd_answer_clear(&answer);
	return rc;
}

static inline int mpsd_is_all_committed(const struct mpsd_arena *arena)
{
	for (size_t i = 0; i < arena->count; i++)
		if (!(arena->items[i].flags & MPSD_ITEM_COMMITTED) || arena->items[i].flags & MPSD_ITEM_DROPPED)
			return 0;
	return !arena->lost && !arena->is_layout_lost && !arena->is_state_lost;
}

static inline void mpsd_committed(struct mpsd_arena *arena)
{
	size_t kept = 0;

	for (size_t i = 0; i < arena->count; i++) {
		struct mpsd_item *item = &arena->items[i];

		if (item->flags & MPSD_ITEM_DROPPED) {
			arena->used_bytes -= item->bytes;
			continue;
		}
		item->flags |= MPSD_ITEM_COMMITTED;
		arena->items[kept++] = *item;
	}
	arena->full_before = kept == arena->count ? arena->full_before : 0;
	arena->count = kept;
}

#endif
