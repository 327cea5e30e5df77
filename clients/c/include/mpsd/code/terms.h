/* SPDX-License-Identifier: MIT */
/* mpsd/code/terms.h: a reader that follows the writer's commits, becomes the writer, and is a reader again. */
#ifndef MPSD_CODE_TERMS_H
#define MPSD_CODE_TERMS_H

/* All that is mapped, or as it was as far as the driver can. */
static inline int mpsd_change_access(struct mpsd_arena *arena, enum mpsd_access access, int is_writable)
{
	enum mpsd_access before = arena->access;
	struct mpsd_words kept;
	int rc, has_words, was_writable = arena->is_writable;

	arena->access = access;
	arena->is_writable = is_writable;
	rc = mpsd_place_allow_all(arena);
	if (rc == 0)
		return 0;
	arena->access = before;
	arena->is_writable = was_writable;
	has_words = mpsd_keep_words(arena->session, &kept);
	mpsd_place_allow_all(arena);
	if (has_words)
		mpsd_restore_words(arena->session, &kept);
	return rc;
}

static inline int mpsd_set_writable_locked(struct mpsd_arena *arena, int is_writable)
{
	int rc, before = arena->access == MPSD_WRITE || arena->is_writable;

	if (is_writable && arena->is_sealed)
		return mpsd_fail(arena->session, -EROFS, 0, 0, "arena %s is sealed and cannot be written any more", arena->name);
	if (arena->access == MPSD_WRITE || (is_writable && before))
		return before;
	rc = mpsd_change_access(arena, MPSD_READ, is_writable);
	return rc < 0 ? rc : before;
}

MPSD_API int mpsd_arena_set_writable(struct mpsd_arena *arena, int is_writable)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_set_writable_locked(arena, !!is_writable);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

static inline int mpsd_promoted_locked(struct mpsd_arena *arena, uint64_t generation)
{
	if (arena->is_sealed)
		return mpsd_fail(arena->session, -EROFS, 0, 0, "arena %s is sealed and cannot be written any more", arena->name);
	if (generation < arena->generation || (arena->access == MPSD_WRITE && generation != arena->generation))
		return mpsd_fail(arena->session, -ESTALE, 0, 0, "arena %s: it is at generation %llu here, and cannot be written as %llu",
				 arena->name, (unsigned long long)arena->generation, (unsigned long long)generation);
	if (arena->access == MPSD_WRITE)
		return 0;
	if (!arena->is_writable) {
		int rc = mpsd_change_access(arena, MPSD_WRITE, 0);

		if (rc < 0)
			return rc;
	}
	arena->access = MPSD_WRITE;
	arena->is_writable = 0;
	arena->generation = generation;
	return 0;
}

MPSD_API int mpsd_arena_promoted(struct mpsd_arena *arena, uint64_t generation)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_promoted_locked(arena, generation);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

static inline void mpsd_forget_state(struct mpsd_arena *arena)
{
	if (arena->state >= 0)
		close(arena->state);
	arena->state = -1;
	arena->is_state_lost = 0;
	arena->state_serial = 0;
}

MPSD_API int mpsd_arena_set_state(struct mpsd_arena *arena, int fd)
{
	int rc = mpsd_arena_lock(arena), copy = -1;

	if (rc < 0)
		return rc;
	rc = mpsd_may_write(arena, "it has no forward state");
	if (rc == 0 && fd >= 0) {
		copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (copy < 0)
			rc = mpsd_fail(arena->session, -errno, 0, 0, "arena %s: no descriptor of a forward state", arena->name);
	}
	if (rc == 0) {
		mpsd_forget_state(arena);
		arena->state = copy;
	}
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

static inline int mpsd_restore_op(struct mpsd_arena *arena, const void *argument)
{
	int rc = mpsd_is_kept_op(arena, argument);

	return rc < 0 ? rc : mpsd_commit_again(arena);
}

MPSD_API int mpsd_arena_restore(struct mpsd_arena *arena, uint64_t *state_serial)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_may_write(arena, "there is nothing to restore");
	if (rc == 0)
		rc = mpsd_settle(arena, mpsd_restore_op, NULL);
	if (rc == 0)
		*state_serial = arena->state_serial;
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

static inline int mpsd_yielded_locked(struct mpsd_arena *arena)
{
	CUresult found;
	int rc;

	if (arena->access != MPSD_WRITE)
		return 0;
	if (!mpsd_is_all_committed(arena))
		return mpsd_fail(arena->session, -EBUSY, 0, 0, "arena %s: yielding what is not committed: commit or free it first",
				 arena->name);
	found = arena->driver.cuCtxSynchronize(); /* what the GPU still writes is written before the next writer comes */
	if (found != CUDA_SUCCESS)
		return mpsd_cuda_fail(arena, found, "cuCtxSynchronize", arena->base, 0);
	rc = mpsd_change_access(arena, MPSD_READ, 0);
	if (rc == 0)
		mpsd_forget_state(arena);
	return rc;
}

MPSD_API int mpsd_arena_renamed(struct mpsd_arena *arena, const char *name)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	if (strlen(name) < sizeof(arena->name))
		strcpy(arena->name, name);
	else
		rc = mpsd_fail(arena->session, -EINVAL, 0, 0, "arena %s: a name is shorter than %zu bytes", arena->name,
			       sizeof(arena->name));
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

MPSD_API int mpsd_arena_yielded(struct mpsd_arena *arena)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	rc = mpsd_yielded_locked(arena);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

/* Check that mpsd's answer is about this arena, and about this writer's generation. */
static inline int mpsd_check_ours(struct mpsd_arena *arena, const struct mpsd_facts *facts)
{
	if (facts->id != arena->id || facts->base != arena->base || facts->window_bytes < arena->window_bytes) {
		mpsd_give_back(arena->session, facts->id, 1);
		return mpsd_fail(arena->session, -ENOENT, 0, 0, "arena %s was removed; another one has its name", arena->name);
	}
	if (arena->access == MPSD_WRITE && facts->generation != arena->generation)
		return mpsd_stale(arena, "another has written since, or mpsd's keeper has died");
	return 0;
}

static inline int mpsd_refresh_once(struct mpsd_arena *arena)
{
	struct mpsd_taken taken;
	struct mpsd_answer answer;
	int rc, is_same_layout;

	memset(&taken, 0, sizeof(taken));
	rc = mpsd_ask_opening(arena, arena->session, MPSD_READ, 0, &taken, &answer);
	if (rc < 0)
		return rc;
	rc = mpsd_check_ours(arena, &taken.facts);
	if (rc < 0)
		mpsd_answer_clear(&answer);
	else
		rc = mpsd_take(arena, &answer, &taken);
	is_same_layout = taken.layout_bytes == arena->layout_bytes &&
			 (!arena->layout || (taken.layout && !memcmp(taken.layout, arena->layout, arena->layout_bytes)));
	if (rc == 0)
		rc = mpsd_renew(arena, &taken);
	if (rc >= 0)
		mpsd_learn(arena, &taken.facts);
	if (rc >= 0 && arena->is_sealed)
		mpsd_space_unkeep_all(arena);
	if (rc >= 0 && arena->is_sealed && arena->is_writable)
		mpsd_change_access(arena, MPSD_READ, 0);
	mpsd_taken_clear(arena, &taken);
	return rc < 0 ? rc : rc + !is_same_layout;
}

MPSD_API int mpsd_arena_refresh(struct mpsd_arena *arena)
{
	int rc = mpsd_arena_lock(arena);

	if (rc < 0)
		return rc;
	if (arena->access == MPSD_WRITE && !mpsd_is_all_committed(arena))
		rc = mpsd_fail(arena->session, -EBUSY, 0, 0, "arena %s: there is what is not committed", arena->name);
	else
		rc = -EAGAIN;
	for (int i = 0; i < MPSD_OPEN_ATTEMPTS && rc == -EAGAIN; i++)
		rc = mpsd_refresh_once(arena);
	pthread_mutex_unlock(&arena->lock);
	return rc;
}

#endif
