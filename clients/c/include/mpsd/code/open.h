/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/open.h: opening an arena.  The window is reserved before mpsd is asked for access: only one in a process can have it,
 * so that whoever fails later may give the access back without taking it from another arena of this process.
 */
#ifndef MPSD_CODE_OPEN_H
#define MPSD_CODE_OPEN_H

enum { MPSD_OPEN_ATTEMPTS = 3 }; /* while it is changed by others */

static inline int mpsd_hex(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Whether "GPU-xxxxxxxx-xxxx-..." (or "MIG-...") says these bytes. */
static inline int mpsd_is_uuid(const char *text, const CUuuid *uuid)
{
	unsigned nibbles = 0;
	int digit;

	for (text += strlen(text) > 4 ? 4 : 0; *text && nibbles < 32; text++) {
		if (*text == '-')
			continue;
		digit = mpsd_hex(*text);
		if (digit < 0 || digit != ((uuid->bytes[nibbles / 2] >> (nibbles % 2 ? 0 : 4)) & 15))
			return 0;
		nibbles++;
	}
	return nibbles == 32 && !*text;
}

static inline int mpsd_check_device(struct mpsd_arena *arena, const struct mpsd_facts *facts)
{
	CUresult found = arena->driver.cuCtxGetDevice(&arena->device);
	CUuuid uuid;

	if (found == CUDA_SUCCESS)
		found = arena->driver.cuDeviceGetUuid_v2(&uuid, arena->device);
	if (found != CUDA_SUCCESS)
		return mpsd_fail(arena->session, -EXDEV, 0, (int)found, "arena %s: no context is current: the driver says %d",
				 arena->name, (int)found);
	if (!mpsd_is_uuid(facts->gpu, &uuid))
		return mpsd_fail(arena->session, -EXDEV, 0, 0, "arena %s is on %s, and the current context on another GPU",
				 arena->name, facts->gpu);
	return 0;
}

/* One allocation of an answer.  Takes the descriptor. */
static inline int mpsd_adopt_one(struct mpsd_arena *arena, uint64_t offset, uint64_t bytes, int fd)
{
	struct mpsd_item item;
	int rc = mpsd_space_prepare(arena);

	if (rc < 0) {
		close(fd);
		return mpsd_fail(arena->session, rc, 0, 0, "arena %s: no memory", arena->name);
	}
	item.offset = offset;
	item.bytes = bytes;
	item.fd = -1;
	item.flags = MPSD_ITEM_COMMITTED | MPSD_ITEM_ADOPTED;
	rc = mpsd_place_import(arena, offset, fd, &item.handle);
	if (rc < 0)
		return rc;
	rc = mpsd_place_map(arena, &item);
	if (rc < 0)
		arena->driver.cuMemRelease(item.handle);
	else
		mpsd_space_insert(arena, &item);
	return rc;
}

/* All of one answer to arena.take.  *end: of the last allocation before and after; *next: where to go on, or UINT64_MAX. */
static inline int mpsd_adopt_page(struct mpsd_arena *arena, struct mpsd_answer *answer, uint64_t *end, uint64_t *next)
{
	struct mpsd_unpack at, more;
	uint64_t offset = 0, bytes;
	uint32_t count, two;
	int rc, fd;

	if (mpsd_unpack_find(&answer->result, "items", &at) < 0 || mpsd_unpack_array(&at, &count) < 0 ||
	    mpsd_unpack_find(&answer->result, "next", &more) < 0)
		return mpsd_broken(arena->session, "arena.take", "no items");
	if (count != answer->fd_count)
		return mpsd_broken(arena->session, "arena.take", "not as many descriptors as allocations");
	for (uint32_t i = 0; i < count; i++) {
		if (mpsd_unpack_array(&at, &two) < 0 || two != 2 || mpsd_unpack_uint(&at, &offset) < 0 ||
		    mpsd_unpack_uint(&at, &bytes) < 0)
			return mpsd_broken(arena->session, "arena.take", "an item is no offset and size");
		if (offset < *end || !bytes || offset % MPSD_GRANULE || bytes % MPSD_GRANULE || offset > arena->window_bytes ||
		    bytes > arena->window_bytes - offset)
			return mpsd_broken(arena->session, "arena.take", "an allocation is not in the window, or not behind the last");
		fd = answer->fds[i];
		answer->fds[i] = -1;
		rc = mpsd_adopt_one(arena, offset, bytes, fd);
		if (rc < 0)
			return rc;
		*end = offset + bytes;
	}
	*next = UINT64_MAX;
	if (mpsd_unpack_kind(&more) == MPSD_KIND_NIL)
		return 0;
	if (!count || mpsd_unpack_uint(&more, next) < 0 || *next != offset)
		return mpsd_broken(arena->session, "arena.take", "next is not the last offset");
	return 0;
}

/* Everything that is committed, mapped.  What fails leaves what was mapped, for mpsd_place_clear(). */
static inline int mpsd_adopt(struct mpsd_arena *arena)
{
	uint64_t next = UINT64_MAX, end = 0;
	unsigned limit = MPSD_DESCRIPTORS;
	struct mpsd_answer answer;
	unsigned char bytes[64];
	struct mpsd_pack pack;
	int rc;

	do {
		mpsd_pack_arena(&pack, bytes, sizeof(bytes), arena->id, 0, 2);
		mpsd_pack_text(&pack, "after");
		if (next == UINT64_MAX)
			mpsd_pack_nil(&pack);
		else
			mpsd_pack_uint(&pack, next);
		mpsd_pack_text(&pack, "limit");
		mpsd_pack_uint(&pack, limit);
		rc = mpsd_call(arena->session, "arena.take", bytes, pack.used, NULL, 0, 1, 0, &answer);
		if (rc == -EMFILE && limit > 1) {
			limit /= 2; /* few descriptors may be open here */
			continue;
		}
		if (rc < 0)
			return rc;
		rc = mpsd_adopt_page(arena, &answer, &end, &next);
		mpsd_answer_clear(&answer);
		if (rc < 0)
			return rc;
	} while (rc < 0 || next != UINT64_MAX);
	return mpsd_place_allow_all(arena);
}

/* The layout that mpsd has.  *bytes: malloc()ed; NULL where there is none. */
static inline int mpsd_fetch_layout(struct mpsd_session *session, uint64_t id, void **bytes, size_t *count)
{
	unsigned char params[32];
	struct mpsd_answer answer;
	struct mpsd_pack pack;
	struct stat facts;
	uint64_t size = 0;
	char *made = NULL;
	int rc;

	mpsd_pack_arena(&pack, params, sizeof(params), id, 0, 0);
	rc = mpsd_call(session, "arena.layout", params, pack.used, NULL, 0, 1, 0, &answer);
	if (rc < 0)
		return rc;
	if (mpsd_unpack_find_uint(&answer.result, "layout_bytes", &size) < 0 || size > MPSD_LAYOUT_BYTES || answer.fd_count > 1 ||
	    (!answer.fd_count && size) ||
	    (answer.fd_count && (fstat(answer.fds[0], &facts) < 0 || !S_ISREG(facts.st_mode) || (uint64_t)facts.st_size != size)))
		rc = mpsd_broken(session, "arena.layout", "a layout and its size do not fit");
	if (rc == 0 && answer.fd_count) {
		made = (char *)malloc(size ? size : 1);
		rc = made ? 0 : mpsd_fail(session, -ENOMEM, 0, 0, "arena.layout: no memory for %llu bytes", (unsigned long long)size);
	}
	for (uint64_t done = 0; rc == 0 && done < size;) {
		ssize_t got = pread(answer.fds[0], made + done, (size_t)(size - done), (off_t)done);

		if (got > 0)
			done += (uint64_t)got;
		else if (got == 0 || errno != EINTR)
			rc = mpsd_broken(session, "arena.layout", "a layout cannot be read");
	}
	mpsd_answer_clear(&answer);
	if (rc < 0) {
		free(made);
		return rc;
	}
	*bytes = made;
	*count = (size_t)size;
	return 0;
}

/* mpsd_ask_access(), on a connection of its own where another writer has to be waited for: it costs a millisecond. */
static inline int mpsd_wait_for_access(struct mpsd_arena *arena, double wait_seconds, struct mpsd_facts *facts)
{
	struct mpsd_session *session = arena->session, *own;
	int rc = mpsd_ask_access(session, arena->name, arena->access, 0, facts);

	if (rc != -EBUSY || wait_seconds <= 0)
		return rc;
	own = mpsd_session_make(session->program);
	if (!own)
		return mpsd_fail(session, -ENOMEM, 0, 0, "arena %s: no memory", arena->name);
	own->address = session->address;
	own->reconnect_seconds = mpsd_reconnect_seconds(session);
	rc = mpsd_ask_access(own, arena->name, arena->access, wait_seconds, facts);
	if (rc < 0)
		mpsd_fail(session, rc, mpsd_error_code(own), 0, "%s", mpsd_error(own));
	mpsd_session_close(own);
	return rc;
}

/* The window and the access, or neither.  -EAGAIN: the arena became another meanwhile. */
static inline int mpsd_admit(struct mpsd_arena *arena, double wait_seconds, struct mpsd_facts *facts)
{
	int rc = mpsd_ask_by_name(arena->session, "arena.get", arena->name, facts);

	if (rc == 0)
		rc = mpsd_check_device(arena, facts);
	if (rc < 0)
		return rc;
	arena->id = facts->id;
	arena->base = facts->base;
	arena->window_bytes = facts->window_bytes;
	snprintf(arena->gpu, sizeof(arena->gpu), "%s", facts->gpu);
	rc = mpsd_place_reserve(arena);
	if (rc < 0)
		return rc;
	rc = mpsd_wait_for_access(arena, wait_seconds, facts);
	if (rc < 0 && rc != -ECONNREFUSED && !mpsd_error_code(arena->session))
		mpsd_give_back_quietly(arena->session, arena->id); /* mpsd did not refuse: it may have given it */
	if (rc == 0 && (facts->id != arena->id || facts->base != arena->base || facts->window_bytes != arena->window_bytes)) {
		mpsd_give_back(arena->session, facts->id);
		rc = mpsd_fail(arena->session, -EAGAIN, 0, 0, "arena %s was removed and made again meanwhile", arena->name);
	}
	if (rc < 0)
		mpsd_place_clear(arena);
	arena->generation = facts->generation;
	arena->capacity_bytes = facts->capacity_bytes;
	arena->is_sealed = facts->is_sealed;
	return rc;
}

/* A reader may have taken half of one commit and half of the next: then -EAGAIN. */
static inline int mpsd_check_same(struct mpsd_arena *arena, const struct mpsd_facts *before)
{
	struct mpsd_facts now;
	int rc = mpsd_ask_by_name(arena->session, "arena.get", arena->name, &now);

	if (rc < 0)
		return rc;
	if (now.id == before->id && now.generation == before->generation && now.allocations == before->allocations &&
	    !strcmp(now.layout_hash, before->layout_hash))
		return 0;
	return mpsd_fail(arena->session, -EAGAIN, 0, 0, "arena %s was committed meanwhile, again and again", arena->name);
}

/* All of it, or nothing. */
static inline int mpsd_open_once(struct mpsd_arena *arena, double wait_seconds)
{
	struct mpsd_facts facts;
	int rc = mpsd_admit(arena, wait_seconds, &facts);

	if (rc < 0)
		return rc;
	rc = mpsd_adopt(arena);
	if (rc == 0 && arena->access == MPSD_READ)
		rc = mpsd_check_same(arena, &facts);
	else if (rc == 0 && facts.layout_bytes)
		rc = mpsd_fetch_layout(arena->session, arena->id, &arena->layout, &arena->layout_bytes);
	if (rc < 0) {
		mpsd_place_clear(arena);
		mpsd_give_back_quietly(arena->session, arena->id);
	}
	return rc;
}

#endif
