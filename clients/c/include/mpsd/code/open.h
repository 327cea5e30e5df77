/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/open.h: open an arena, with one request unless it has very many allocations.
 *
 * mpsd grants access to the process, and one arena of the process reserves the window: only the call that reserved it may
 * return access. A call that could not reserve it returns access only if mpsd reports no other opening by this process, so that
 * another arena of this process does not lose its access.
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

/* Whether "GPU-xxxxxxxx-xxxx-..." (or "MIG-...") names the GPU with these bytes. */
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

/* Set the fields that only opening sets. */
static inline void mpsd_identify(struct mpsd_arena *arena, const struct mpsd_facts *facts)
{
	arena->id = facts->id;
	arena->base = facts->base;
	arena->window_bytes = facts->window_bytes;
	snprintf(arena->gpu, sizeof(arena->gpu), "%s", facts->gpu);
}

/* Update the fields that may change with each request. */
static inline void mpsd_learn(struct mpsd_arena *arena, const struct mpsd_facts *facts)
{
	arena->generation = facts->generation;
	arena->capacity_bytes = facts->capacity_bytes;
	arena->is_sealed = facts->is_sealed;
}

static inline int mpsd_check_device(struct mpsd_arena *arena)
{
	CUresult found = arena->driver.cuCtxGetDevice(&arena->device);
	CUuuid uuid;

	if (found == CUDA_SUCCESS)
		found = arena->driver.cuDeviceGetUuid_v2(&uuid, arena->device);
	if (found != CUDA_SUCCESS)
		return mpsd_fail(arena->session, -EXDEV, 0, (int)found, "arena %s: no context is current: the driver says %d",
				 arena->name, (int)found);
	if (!mpsd_is_uuid(arena->gpu, &uuid))
		return mpsd_fail(arena->session, -EXDEV, 0, 0, "arena %s is on %s, and the current context on another GPU",
				 arena->name, arena->gpu);
	return 0;
}

/* Access, and what comes with it: taken->facts are read, the rest is in *answer. */
static inline int mpsd_ask_opening(struct mpsd_arena *arena, struct mpsd_session *session, enum mpsd_access access,
				   double wait_seconds, struct mpsd_taken *taken, struct mpsd_answer *answer)
{
	struct mpsd_wish wish = { arena->name, access, MPSD_DESCRIPTORS - 1, arena->commit };
	int rc;

	do
		rc = mpsd_ask_access(session, &wish, wait_seconds, answer);
	while (rc == -EMFILE && (wish.takes /= 2)); /* few descriptors may be open here */
	taken->most = wish.takes + 1;
	if (rc < 0)
		return rc;
	rc = mpsd_read_facts(session, "arena.open", &answer->result, &taken->facts);
	if (rc < 0)
		mpsd_answer_clear(answer);
	return rc;
}

/* The same, on a connection of its own if it has to wait for another writer: that costs a millisecond. */
static inline int mpsd_wait_for_access(struct mpsd_arena *arena, double wait_seconds, struct mpsd_taken *taken,
				       struct mpsd_answer *answer)
{
	struct mpsd_session *session = arena->session, *own;
	int rc = mpsd_ask_opening(arena, session, arena->access, 0, taken, answer);

	if (rc != -EBUSY || wait_seconds <= 0)
		return rc;
	own = mpsd_session_make(session->program);
	if (!own)
		return mpsd_fail(session, -ENOMEM, 0, 0, "arena %s: no memory", arena->name);
	own->address = session->address;
	own->reconnect_seconds = mpsd_reconnect_seconds(session);
	rc = mpsd_ask_opening(arena, own, arena->access, wait_seconds, taken, answer);
	if (rc < 0)
		mpsd_fail(session, rc, mpsd_error_code(own), 0, "%s", mpsd_error(own));
	mpsd_session_close(own);
	return rc;
}

/* mpsd did not refuse, but its answer was lost: it may have granted access. If the window is free, no other arena of this
 * process has access. */
static inline void mpsd_give_back_unheard(struct mpsd_arena *arena)
{
	struct mpsd_facts facts;
	struct mpsd_words kept;
	int has_words = mpsd_keep_words(arena->session, &kept);

	if (mpsd_ask_by_name(arena->session, "arena.get", arena->name, &facts) == 0) {
		mpsd_identify(arena, &facts);
		if (mpsd_place_reserve(arena) == 0)
			mpsd_give_back(arena->session, arena->id, 0);
		mpsd_place_clear(arena);
	}
	if (has_words)
		mpsd_restore_words(arena->session, &kept);
}

/* Called when the GPU is known. */
struct mpsd_entrance {
	int (*enter)(void *argument, const char *gpu); /* may be NULL */
	void *argument;
};

/* The access and the window, or neither; what came with the access is in *answer. */
static inline int mpsd_admit(struct mpsd_arena *arena, const struct mpsd_entrance *entrance, double wait_seconds,
			     struct mpsd_taken *taken, struct mpsd_answer *answer)
{
	int rc = mpsd_wait_for_access(arena, wait_seconds, taken, answer);

	if (rc < 0) {
		if (rc != -ECONNREFUSED && !mpsd_error_code(arena->session))
			mpsd_give_back_unheard(arena);
		return rc;
	}
	mpsd_identify(arena, &taken->facts);
	mpsd_learn(arena, &taken->facts);
	if (entrance->enter && (rc = entrance->enter(entrance->argument, arena->gpu)) != 0)
		rc = mpsd_fail(arena->session, rc < 0 ? rc : -EIO, 0, 0, "arena %s: no context of %s: enter said %d", arena->name,
			       arena->gpu, rc);
	if (rc == 0)
		rc = mpsd_check_device(arena);
	if (rc == 0)
		rc = mpsd_place_reserve(arena);
	if (rc < 0) {
		mpsd_answer_clear(answer);
		if (taken->facts.openings == 1)
			mpsd_give_back_quietly(arena->session, arena->id, 1);
	}
	return rc;
}

/* Open it completely, or undo. */
static inline int mpsd_open_once(struct mpsd_arena *arena, const struct mpsd_entrance *entrance, double wait_seconds)
{
	struct mpsd_answer answer;
	struct mpsd_taken taken;
	int rc;

	memset(&taken, 0, sizeof(taken));
	rc = mpsd_admit(arena, entrance, wait_seconds, &taken, &answer);
	if (rc < 0)
		return rc;
	rc = mpsd_take(arena, &answer, &taken);
	if (rc == 0)
		rc = mpsd_renew(arena, &taken);
	mpsd_taken_clear(arena, &taken);
	if (rc >= 0)
		return 0;
	mpsd_place_clear(arena);
	mpsd_give_back_quietly(arena->session, arena->id, 0);
	return rc;
}

#endif
