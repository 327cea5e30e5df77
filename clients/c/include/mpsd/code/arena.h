/* SPDX-License-Identifier: MIT */
/* mpsd/code/arena.h: the calls of mpsd/arena.h: each checks that the arena belongs to this process, takes the lock, and calls
 * another file. */
#ifndef MPSD_CODE_ARENA_H
#define MPSD_CODE_ARENA_H

/* -- there and not there -------------------------------------------------------------------------------------------- */

static inline void mpsd_pack_options(struct mpsd_pack *pack, const char *name, const struct mpsd_arena_options *options)
{
	mpsd_pack_map(pack, 6);
	mpsd_pack_text(pack, "name");
	mpsd_pack_text(pack, name);
	mpsd_pack_text(pack, "gpu");
	mpsd_pack_text(pack, options->gpu ? options->gpu : "0");
	mpsd_pack_text(pack, "capacity_bytes");
	mpsd_pack_uint(pack, options->capacity_bytes);
	mpsd_pack_text(pack, "window_bytes");
	if (options->window_bytes)
		mpsd_pack_uint(pack, options->window_bytes);
	else
		mpsd_pack_nil(pack);
	mpsd_pack_text(pack, "mode");
	mpsd_pack_uint(pack, options->mode ? options->mode : 0600);
	mpsd_pack_text(pack, "ttl_seconds");
	if (options->ttl_seconds > 0)
		mpsd_pack_double(pack, options->ttl_seconds);
	else
		mpsd_pack_nil(pack);
}

MPSD_API int mpsd_arena_create(struct mpsd_session *session, const char *name, const struct mpsd_arena_options *options)
{
	uint64_t rounded = options->capacity_bytes + (MPSD_GRANULE - options->capacity_bytes % MPSD_GRANULE) % MPSD_GRANULE;
	unsigned char bytes[512];
	struct mpsd_facts facts;
	struct mpsd_words kept;
	struct mpsd_pack pack;
	int rc, is_known = 1;

	mpsd_pack_begin(&pack, bytes, sizeof(bytes));
	mpsd_pack_options(&pack, name, options);
	if (pack.failed)
		return mpsd_fail(session, -EINVAL, 0, 0, "arena.create: the name of an arena or of its GPU is too long");
	rc = mpsd_call(session, "arena.create", bytes, pack.used, NULL, 0, 0, 0, NULL);
	if (rc == -ECONNRESET) {
		is_known = 0;
		rc = mpsd_call(session, "arena.create", bytes, pack.used, NULL, 0, 1, 0, NULL);
	}
	if (rc != -EINVAL || !mpsd_keep_words(session, &kept))
		return rc;
	if (mpsd_ask_by_name(session, "arena.get", name, &facts) == 0)
		rc = is_known || facts.generation || facts.capacity_bytes != rounded ? -EEXIST : 0;
	mpsd_restore_words(session, &kept);
	return rc;
}

MPSD_API int mpsd_arena_remove(struct mpsd_session *session, const char *name)
{
	unsigned char bytes[256];
	struct mpsd_pack pack;
	int rc;

	rc = mpsd_pack_name(session, &pack, bytes, sizeof(bytes), "arena.remove", name);
	if (rc < 0)
		return rc;
	rc = mpsd_call(session, "arena.remove", bytes, pack.used, NULL, 0, 0, 0, NULL);
	if (rc != -ECONNRESET)
		return rc;
	rc = mpsd_call(session, "arena.remove", bytes, pack.used, NULL, 0, 1, 0, NULL);
	return rc == -ENOENT ? 0 : rc;
}

/* Frees what is of this process alone. */
MPSD_API void mpsd_arena_forget(struct mpsd_arena *arena)
{
	if (!arena)
		return;
	if (arena->sent && getpid() == arena->pid)
		mpsd_disown(arena->session);
	while (arena->count)
		mpsd_space_remove(arena, arena->count - 1);
	if (getpid() == arena->pid)
		pthread_mutex_destroy(&arena->lock);
	if (arena->state >= 0)
		close(arena->state);
	free(arena->items);
	free(arena->layout);
	free(arena);
}

MPSD_API int mpsd_arena_open_on(struct mpsd_session *session, const struct mpsd_driver *driver, const char *name,
				enum mpsd_access access, double wait_seconds, int (*enter)(void *argument, const char *gpu), void *argument,
				struct mpsd_arena **out)
{
	struct mpsd_entrance entrance = { enter, argument };
	struct mpsd_arena *arena;
	int rc = -EAGAIN;

	if (mpsd_is_parents(session))
		return -ECHILD;
	if (strlen(name) >= sizeof(arena->name) || !(wait_seconds >= 0 && wait_seconds <= 3600))
		return mpsd_fail(session, -EINVAL, 0, 0, "arena.open: a name has up to 128 characters, a wait 0 to 3600 seconds");
	arena = (struct mpsd_arena *)calloc(1, sizeof(*arena));
	if (!arena)
		return mpsd_fail(session, -ENOMEM, 0, 0, "arena %s: no memory", name);
	arena->session = session;
	arena->driver = *driver;
	arena->pid = getpid();
	arena->access = access;
	arena->state = -1;
	snprintf(arena->name, sizeof(arena->name), "%s", name);
	pthread_mutex_init(&arena->lock, NULL);
	for (int i = 0; i < MPSD_OPEN_ATTEMPTS && rc == -EAGAIN; i++)
		rc = mpsd_open_once(arena, &entrance, wait_seconds);
	if (rc < 0)
		mpsd_arena_forget(arena);
	else
		*out = arena;
	return rc;
}

MPSD_API int mpsd_arena_open(struct mpsd_session *session, const struct mpsd_driver *driver, const char *name,
			     enum mpsd_access access, double wait_seconds, struct mpsd_arena **out)
{
	return mpsd_arena_open_on(session, driver, name, access, wait_seconds, NULL, NULL, out);
}

MPSD_API int mpsd_arena_close(struct mpsd_arena *arena)
{
	int rc = 0;

	if (!arena)
		return 0;
	if (mpsd_arena_lock(arena) < 0) {
		mpsd_arena_forget(arena);
		return -ECHILD;
	}
	if (arena->access == MPSD_WRITE && !arena->is_sealed)
		rc = mpsd_settle(arena, mpsd_is_kept_op, NULL); /* the last moment to make good what a keeper lost */
	arena->driver.cuCtxSynchronize(); /* what the GPU still writes is written before the next writer comes */
	mpsd_place_clear(arena);
	pthread_mutex_unlock(&arena->lock);
	if (rc != -ECONNREFUSED && rc != -ETIMEDOUT) /* else it is waited for no longer: it will see that this process ends */
		rc = mpsd_give_back(arena->session, arena->id, 0);
	mpsd_arena_forget(arena);
	return rc;
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

MPSD_API int mpsd_arena_alloc(struct mpsd_arena *arena, uint64_t bytes, uint64_t *address)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_alloc_locked(arena, bytes, address);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

MPSD_API int mpsd_arena_free(struct mpsd_arena *arena, uint64_t address)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_free_locked(arena, address);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

MPSD_API int mpsd_arena_flush(struct mpsd_arena *arena)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_may_write(arena, "there is nothing to give");
	if (rc == 0)
		rc = mpsd_settle(arena, mpsd_give_op, NULL);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

/* -- commit, layout, seal ------------------------------------------------------------------------------------------- */

struct mpsd_layout {
	const void *bytes; /* NULL: as it was */
	size_t count;
};

static inline int mpsd_commit_op(struct mpsd_arena *arena, const void *argument)
{
	const struct mpsd_layout *layout = (const struct mpsd_layout *)argument;
	int rc = mpsd_give(arena);

	if (rc < 0)
		return rc;
	if (!layout->bytes && arena->is_layout_lost)
		return mpsd_tell_commit(arena, arena->layout, arena->layout_bytes);
	return mpsd_tell_commit(arena, layout->bytes, layout->count);
}

MPSD_API int mpsd_arena_commit(struct mpsd_arena *arena, const void *layout, size_t bytes)
{
	struct mpsd_layout given;
	void *kept = NULL;
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	given.bytes = layout;
	given.count = bytes;
	rc = mpsd_may_write(arena, "there is nothing to commit");
	if (rc == 0 && layout && bytes > MPSD_LAYOUT_BYTES)
		rc = mpsd_fail(arena->session, -EINVAL, 0, 0, "arena %s: a layout of %zu bytes; most are %d", arena->name, bytes,
			       MPSD_LAYOUT_BYTES);
	if (rc == 0 && layout) {
		kept = malloc(bytes ? bytes : 1);
		rc = kept ? 0 : mpsd_fail(arena->session, -ENOMEM, 0, 0, "arena %s: no memory for the layout", arena->name);
	}
	if (rc == 0)
		rc = mpsd_settle(arena, mpsd_commit_op, &given);
	if (rc == 0) {
		mpsd_committed(arena);
		arena->is_layout_lost = arena->is_torn = 0;
		if (kept) {
			memcpy(kept, layout, bytes);
			free(arena->layout);
			arena->layout = kept;
			arena->layout_bytes = bytes;
			kept = NULL;
		}
	}
	pthread_mutex_unlock(&arena->lock);
	free(kept);
	return rc;
}

MPSD_API int mpsd_arena_layout(struct mpsd_arena *arena, void **bytes, size_t *count)
{
	void *made = NULL;
	size_t size = 0;
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	if (arena->layout) {
		size = arena->layout_bytes;
		made = malloc(size ? size : 1);
		if (made)
			memcpy(made, arena->layout, size);
		else
			rc = mpsd_fail(arena->session, -ENOMEM, 0, 0, "arena %s: no memory for the layout", arena->name);
	}
	pthread_mutex_unlock(&arena->lock);
	if (rc == 0) {
		*bytes = made;
		*count = size;
	}
	return rc;
}

static inline int mpsd_seal_op(struct mpsd_arena *arena, const void *argument)
{
	unsigned char bytes[64];
	struct mpsd_facts facts;
	struct mpsd_pack pack;
	int rc;

	(void)argument;
	if (!mpsd_is_all_committed(arena))
		return mpsd_fail(arena->session, -EBUSY, 0, 0, "arena %s: sealing what is not committed: commit first", arena->name);
	mpsd_pack_arena(&pack, bytes, sizeof(bytes), arena->id, arena->generation, 0);
	rc = mpsd_call(arena->session, "arena.seal", bytes, pack.used, NULL, 0, 1, 0, NULL);
	if (rc == -EROFS || rc == -ESTALE) /* it was carried out the first time, and the answer was lost */
		if (mpsd_ask_by_name(arena->session, "arena.get", arena->name, &facts) == 0 && facts.id == arena->id &&
		    facts.is_sealed && facts.generation == arena->generation)
			rc = 0;
	return rc;
}

MPSD_API int mpsd_arena_seal(struct mpsd_arena *arena)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_may_write(arena, "there is nothing to seal");
	if (rc == 0)
		rc = mpsd_settle(arena, mpsd_seal_op, NULL);
	if (rc == 0) {
		arena->is_sealed = 1;
		arena->access = MPSD_READ;
		mpsd_space_unkeep_all(arena);
		rc = mpsd_place_allow_all(arena);
	}
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

#endif
