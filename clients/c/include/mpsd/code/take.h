/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/take.h: receive the last commit from mpsd: in pages, with a descriptor for each allocation newer than the commit
 * that is mapped here. All functions are called with the arena's lock held, or before other threads have the arena.
 */
#ifndef MPSD_CODE_TAKE_H
#define MPSD_CODE_TAKE_H

struct mpsd_taken { /* one commit */
	struct mpsd_facts facts;
	uint64_t commit;
	struct mpsd_item *items; /* by offset; NEW ones own their handles and descriptors, the others have those of the arena's table */
	size_t count;
	size_t room;
	void *layout; /* malloc()ed; NULL: no layout */
	size_t layout_bytes;
	unsigned most; /* descriptors at once */
	int keep_below; /* mpsd_keep_below(); 0: of what is sealed nothing is given again */
};

static inline void mpsd_taken_clear(struct mpsd_arena *arena, struct mpsd_taken *taken)
{
	for (size_t i = 0; i < taken->count; i++) {
		if (taken->items[i].flags & MPSD_ITEM_NEW) {
			mpsd_space_unkeep(&taken->items[i]);
			arena->driver.cuMemRelease(taken->items[i].handle);
		}
	}
	free(taken->items);
	free(taken->layout);
	taken->items = NULL;
	taken->layout = NULL;
	taken->count = taken->room = 0;
}

/* From the beginning of a descriptor of `size` bytes.  *bytes: malloc()ed. */
static inline int mpsd_read_layout(struct mpsd_session *session, int fd, uint64_t size, void **bytes)
{
	struct stat facts;
	char *made;

	if (!size || size > MPSD_LAYOUT_BYTES || fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode) || (uint64_t)facts.st_size != size)
		return mpsd_broken(session, "arena.open", "a layout and its size do not fit");
	made = (char *)malloc((size_t)size);
	if (!made)
		return mpsd_fail(session, -ENOMEM, 0, 0, "arena.open: no memory for a layout of %llu bytes", (unsigned long long)size);
	for (uint64_t done = 0; done < size;) {
		ssize_t got = pread(fd, made + done, (size_t)(size - done), (off_t)done);

		if (got > 0) {
			done += (uint64_t)got;
		} else if (got == 0 || errno != EINTR) {
			free(made);
			return mpsd_broken(session, "arena.open", "a layout cannot be read");
		}
	}
	*bytes = made;
	return 0;
}

/* One more of them.  fd: of one that is newer than what is here, which is taken; -1: of one that is as it was. */
static inline int mpsd_take_item(struct mpsd_arena *arena, struct mpsd_taken *taken, uint64_t offset, uint64_t bytes, int fd)
{
	size_t more = taken->room ? 2 * taken->room : 64, at;
	struct mpsd_item *item;
	void *grown;

	if (taken->count == taken->room) {
		grown = realloc(taken->items, more * sizeof(*taken->items));
		if (!grown) {
			if (fd >= 0)
				close(fd);
			return mpsd_fail(arena->session, -ENOMEM, 0, 0, "arena %s: no memory", arena->name);
		}
		taken->items = (struct mpsd_item *)grown;
		taken->room = more;
	}
	item = &taken->items[taken->count];
	at = mpsd_space_find(arena, offset);
	if (fd >= 0) {
		int rc;

		item->offset = offset;
		rc = mpsd_place_import(arena, item, fd, taken->keep_below);
		if (rc < 0)
			return rc;
		item->bytes = bytes;
		item->fd = -1;
		item->flags = MPSD_ITEM_COMMITTED | MPSD_ITEM_ADOPTED | MPSD_ITEM_NEW;
	} else if (at < arena->count && arena->items[at].offset == offset && arena->items[at].bytes == bytes) {
		*item = arena->items[at];
	} else {
		return mpsd_broken(arena->session, "arena.take", "an allocation that is not new is not here");
	}
	taken->count++;
	return 0;
}

/* [offset, bytes, the commit that it came with]; it lies behind `end`, in the window. */
static inline int mpsd_unpack_item(struct mpsd_arena *arena, struct mpsd_unpack *at, uint64_t end, uint64_t *item)
{
	uint32_t entries;

	if (mpsd_unpack_array(at, &entries) < 0 || entries != 3 || mpsd_unpack_uint(at, &item[0]) < 0 ||
	    mpsd_unpack_uint(at, &item[1]) < 0 || mpsd_unpack_uint(at, &item[2]) < 0)
		return mpsd_broken(arena->session, "arena.take", "an item is no offset, size and commit");
	if (item[0] < end || !item[1] || item[0] % MPSD_GRANULE || item[1] % MPSD_GRANULE || item[0] > arena->window_bytes ||
	    item[1] > arena->window_bytes - item[0])
		return mpsd_broken(arena->session, "arena.take", "an allocation is not in the window, or not behind the last");
	return 0;
}

/* All of one answer, from its descriptor `used` on. */
static inline int mpsd_take_page(struct mpsd_arena *arena, struct mpsd_taken *taken, struct mpsd_answer *answer, unsigned used)
{
	const struct mpsd_item *last;
	struct mpsd_unpack at;
	uint64_t item[3];
	uint32_t count;
	int rc, fd;

	if (mpsd_unpack_find(&answer->result, "items", &at) < 0 || mpsd_unpack_array(&at, &count) < 0)
		return mpsd_broken(arena->session, "arena.take", "no items");
	for (uint32_t i = 0; i < count; i++) {
		last = taken->count ? &taken->items[taken->count - 1] : NULL;
		rc = mpsd_unpack_item(arena, &at, last ? last->offset + last->bytes : 0, item);
		if (rc < 0)
			return rc;
		fd = -1;
		if (item[2] > arena->commit) {
			if (used == answer->fd_count)
				return mpsd_broken(arena->session, "arena.take", "too few descriptors");
			fd = answer->fds[used];
			answer->fds[used++] = -1;
		}
		rc = mpsd_take_item(arena, taken, item[0], item[1], fd);
		if (rc < 0)
			return rc;
	}
	return used == answer->fd_count ? 0 : mpsd_broken(arena->session, "arena.take", "too many descriptors");
}

/* Where the next page begins: the last offset of this one; UINT64_MAX: this was the last page. */
static inline int mpsd_find_next(struct mpsd_arena *arena, const struct mpsd_answer *answer, uint64_t *next)
{
	struct mpsd_unpack more;

	*next = UINT64_MAX;
	if (mpsd_unpack_find(&answer->result, "next", &more) < 0 ||
	    (mpsd_unpack_kind(&more) != MPSD_KIND_NIL && mpsd_unpack_uint(&more, next) < 0))
		return mpsd_broken(arena->session, "arena.take", "no next");
	return 0;
}

static inline void mpsd_pack_page(const struct mpsd_arena *arena, const struct mpsd_taken *taken, uint64_t after,
				  struct mpsd_pack *pack, void *bytes, size_t room)
{
	mpsd_pack_arena(pack, bytes, room, arena->id, 0, 3);
	mpsd_pack_text(pack, "after");
	mpsd_pack_uint(pack, after);
	mpsd_pack_text(pack, "limit");
	mpsd_pack_uint(pack, taken->most);
	mpsd_pack_text(pack, "known");
	mpsd_pack_uint(pack, arena->commit);
}

/* is_owed: it was asked for before, and its answer is deferred. */
static inline int mpsd_ask_page(struct mpsd_arena *arena, struct mpsd_taken *taken, uint64_t after, int is_owed,
				struct mpsd_answer *answer)
{
	int rc = is_owed ? mpsd_outcome(arena->session, answer) : -ECONNRESET;
	unsigned char bytes[96];
	struct mpsd_pack pack;

	while (rc == -ECONNRESET || (rc == -EMFILE && (taken->most /= 2))) { /* few descriptors may be open here */
		mpsd_pack_page(arena, taken, after, &pack, bytes, sizeof(bytes));
		rc = mpsd_call(arena->session, "arena.take", bytes, pack.used, NULL, 0, 1, 0, answer);
	}
	return rc;
}

/* Take the parts that came with arena.open: the layout, and its allocations as the first page. */
static inline int mpsd_take_first(struct mpsd_arena *arena, struct mpsd_taken *taken, struct mpsd_answer *answer,
				  unsigned *used)
{
	struct mpsd_unpack at;
	int has_layout;

	if (mpsd_unpack_find_uint(&answer->result, "commit", &taken->commit) < 0 ||
	    mpsd_unpack_find(&answer->result, "has_layout", &at) < 0 || mpsd_unpack_bool(&at, &has_layout) < 0)
		return mpsd_broken(arena->session, "arena.open", "no commit");
	if (has_layout != (taken->facts.layout_bytes != 0) || (has_layout && !answer->fd_count))
		return mpsd_broken(arena->session, "arena.open", "a layout and its size do not fit");
	taken->layout_bytes = (size_t)taken->facts.layout_bytes;
	*used = (unsigned)has_layout;
	return has_layout ? mpsd_read_layout(arena->session, answer->fds[0], taken->facts.layout_bytes, &taken->layout) : 0;
}

/* Of a later page.  -EAGAIN: it is of another commit. */
static inline int mpsd_check_commit(struct mpsd_arena *arena, const struct mpsd_taken *taken, const struct mpsd_answer *answer)
{
	uint64_t commit;

	if (mpsd_unpack_find_uint(&answer->result, "commit", &commit) < 0)
		return mpsd_broken(arena->session, "arena.take", "no commit");
	if (commit != taken->commit)
		return mpsd_fail(arena->session, -EAGAIN, 0, 0, "arena %s was committed meanwhile, again and again", arena->name);
	return 0;
}

/* Take all pages; while one page is imported, mpsd prepares the next. answer: of arena.open, with taken->facts; cleared here.
 * -EAGAIN: another commit happened in between. */
static inline int mpsd_take(struct mpsd_arena *arena, struct mpsd_answer *answer, struct mpsd_taken *taken)
{
	unsigned char bytes[96];
	struct mpsd_pack pack;
	unsigned used = 0;
	size_t before;
	uint64_t next;
	int is_owed, rc = mpsd_take_first(arena, taken, answer, &used);

	taken->keep_below = taken->facts.is_sealed ? 0 : mpsd_keep_below();
	while (rc == 0) {
		rc = mpsd_find_next(arena, answer, &next);
		if (rc < 0)
			break;
		mpsd_pack_page(arena, taken, next, &pack, bytes, sizeof(bytes));
		is_owed = next != UINT64_MAX && mpsd_call_soon(arena->session, "arena.take", bytes, pack.used, NULL, 0) == 0;
		before = taken->count;
		rc = mpsd_take_page(arena, taken, answer, used);
		if (rc == 0 && next != UINT64_MAX && (taken->count == before || next != taken->items[taken->count - 1].offset))
			rc = mpsd_broken(arena->session, "arena.take", "next is not the last offset of this page");
		mpsd_answer_clear(answer);
		if (rc < 0 && is_owed)
			mpsd_disown(arena->session);
		if (rc < 0 || next == UINT64_MAX)
			return rc;
		rc = mpsd_ask_page(arena, taken, next, is_owed, answer);
		if (rc < 0)
			return rc;
		rc = mpsd_check_commit(arena, taken, answer);
		used = 0;
	}
	mpsd_answer_clear(answer);
	return rc;
}

#endif
