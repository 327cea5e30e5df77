/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/repair.h: recover after the death of mpsd's keeper. The descriptors are lost with it, and mpsd answers
 * STALE_GENERATION. The writer, which has its own handles, opens the arena again and gives all memory again. All functions are
 * called with the arena's lock held.
 */
#ifndef MPSD_CODE_REPAIR_H
#define MPSD_CODE_REPAIR_H

static inline int mpsd_stale(struct mpsd_arena *arena, const char *why)
{
	return mpsd_fail(arena->session, -ESTALE, MPSD_STALE_GENERATION, 0, "arena %s: generation %llu is over: %s", arena->name,
			 (unsigned long long)arena->generation, why);
}

/* Become the writer of a new, empty generation. 0 or -errno. */
static inline int mpsd_write_again(struct mpsd_arena *arena)
{
	struct mpsd_wish wish = { arena->name, MPSD_WRITE, 0, 0 };
	struct mpsd_answer answer;
	struct mpsd_facts facts;
	int rc = mpsd_ask_access(arena->session, &wish, 0, &answer);

	if (rc == -EBUSY || rc == -ENOENT || rc == -EROFS || rc == -EACCES)
		return mpsd_stale(arena, "another has written since, or it was removed or sealed");
	if (rc < 0)
		return rc;
	rc = mpsd_read_facts(arena->session, "arena.open", &answer.result, &facts);
	mpsd_answer_clear(&answer);
	if (rc < 0)
		return rc;
	if (facts.id == arena->id && facts.generation == arena->generation)
		return mpsd_stale(arena, "mpsd says so, and says that it is not");
	if (facts.id != arena->id || facts.base != arena->base || facts.window_bytes < arena->window_bytes || facts.allocations ||
	    facts.state_serial) {
		mpsd_give_back_quietly(arena->session, facts.id, 0);
		return mpsd_stale(arena, "another has written since");
	}
	arena->generation = facts.generation;
	arena->capacity_bytes = facts.capacity_bytes;
	return 0;
}

/* Everything has to be given again. */
static inline void mpsd_lose(struct mpsd_arena *arena)
{
	mpsd_finish_sent(arena); /* its outcome no longer matters */
	for (size_t i = arena->count; i-- > 0;) {
		struct mpsd_item *item = &arena->items[i];

		if (item->flags & MPSD_ITEM_DROPPED) {
			arena->is_torn = arena->is_torn || item->flags & MPSD_ITEM_COMMITTED;
			mpsd_space_remove(arena, i);
			continue;
		}
		arena->lost += !(item->flags & MPSD_ITEM_LOST);
		item->flags |= MPSD_ITEM_LOST;
	}
	arena->is_layout_lost = arena->layout != NULL;
	arena->is_state_lost = arena->state >= 0;
	arena->state_serial = 0;
}

/* Whether mpsd lacks what it should have: memory of the last commit, its layout, or the state. */
static inline int mpsd_is_lacking(const struct mpsd_arena *arena)
{
	int lacks = arena->is_layout_lost || arena->is_state_lost;

	for (size_t i = 0; i < arena->count && arena->lost; i++)
		lacks = lacks || (arena->items[i].flags & MPSD_ITEM_COMMITTED && arena->items[i].flags & MPSD_ITEM_LOST);
	return lacks;
}

/* Whether a commit now would contain exactly the last commit's memory. If more was given or some was freed, the program has to
 * commit. */
static inline int mpsd_is_as_committed(const struct mpsd_arena *arena)
{
	const unsigned elsewhere = MPSD_ITEM_COMMITTED | MPSD_ITEM_LOST;

	for (size_t i = 0; i < arena->count; i++)
		if (arena->items[i].flags & MPSD_ITEM_DROPPED || (arena->items[i].fd < 0 && !(arena->items[i].flags & elsewhere)))
			return 0;
	return !arena->is_torn && !arena->sent;
}

/* Commit again if all committed memory is still here; the rest waits. */
static inline int mpsd_commit_again(struct mpsd_arena *arena)
{
	int rc;

	if (!mpsd_is_lacking(arena))
		return 0;
	if (!mpsd_is_as_committed(arena))
		return mpsd_fail(arena->session, -EBUSY, 0, 0, "arena %s: mpsd's keeper has died, and what was committed was changed since",
				 arena->name);
	rc = mpsd_give_puts(arena, MPSD_ITEM_COMMITTED);
	if (rc == 0)
		rc = mpsd_tell_commit(arena, arena->layout, arena->layout_bytes);
	if (rc == 0)
		arena->is_layout_lost = 0;
	return rc;
}

/* The same, after mpsd has answered that the memory is lost. */
static inline int mpsd_repair(struct mpsd_arena *arena)
{
	int rc = mpsd_write_again(arena);

	if (rc < 0)
		return rc;
	mpsd_lose(arena);
	for (size_t i = 0; i < arena->count && arena->is_torn; i++)
		arena->items[i].flags &= ~(unsigned)MPSD_ITEM_COMMITTED;
	return arena->is_torn ? 0 : mpsd_commit_again(arena);
}

/* Ask whether mpsd still has the committed memory: it does not report the death of its keeper unasked. 0 or -errno. */
static inline int mpsd_is_kept_op(struct mpsd_arena *arena, const void *argument)
{
	struct mpsd_facts facts;
	int rc = mpsd_ask_by_name(arena->session, "arena.get", arena->name, &facts);

	(void)argument;
	if (rc < 0)
		return rc;
	return facts.id == arena->id && facts.generation == arena->generation ? 0 : mpsd_stale(arena, "mpsd's keeper has died");
}

/* Do something that mpsd may refuse because its keeper died, and once more after the repair.  If mpsd cannot repair it now, as with
 * a full disk, that is the failure: -ESTALE would mean that another process may write. */
static inline int mpsd_settle(struct mpsd_arena *arena, int (*what)(struct mpsd_arena *arena, const void *argument), const void *argument)
{
	double until = mpsd_now() + mpsd_reconnect_seconds(arena->session);
	int rc, is_repaired = 0;

	for (;;) {
		rc = what(arena, argument);
		if (rc == -ESTALE && !is_repaired) {
			rc = mpsd_repair(arena);
			is_repaired = rc == 0;
			if (is_repaired)
				continue;
		}
		if (rc != -EREMOTEIO || mpsd_error_code(arena->session) != MPSD_KEEPER_FAILED || mpsd_now() >= until)
			return rc;
		mpsd_nap(5 * MPSD_NAP_SECONDS); /* mpsd starts another */
	}
}

#endif
