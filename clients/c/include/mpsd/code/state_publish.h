/* SPDX-License-Identifier: MIT */
/* mpsd/code/state_publish.h: the writer of a forward state publishes an update. No function here waits. */
#ifndef MPSD_CODE_STATE_PUBLISH_H
#define MPSD_CODE_STATE_PUBLISH_H

MPSD_API int mpsd_state_changed(struct mpsd_state *state, uint64_t offset, uint64_t bytes)
{
	uint64_t first = offset / MPSD_STATE_LINE, end, group;

	if (offset > state->record_bytes || bytes > state->record_bytes - offset)
		return -EINVAL;
	if (!bytes)
		return 0;
	end = (offset + bytes - 1) / MPSD_STATE_LINE + 1;
	for (group = first / 64; group * 64 < end; group++) {
		uint64_t from = first > group * 64 ? first - group * 64 : 0;
		uint64_t upto = end - group * 64 < 64 ? end - group * 64 : 64; /* from < upto <= 64 */
		/* cppcheck-suppress shiftTooManyBits ; it is 1 to 64 that are kept */
		uint64_t bits = (~(uint64_t)0 >> (64 - (upto - from))) << from;

		for (unsigned slot = 0; slot < MPSD_STATE_SLOTS; slot++)
			state->stale[slot * state->groups + group] |= bits;
	}
	return 0;
}

/* Copy from the record to a slot. Each word is read once: even if the record changes meanwhile, slot and digest agree. */
static inline uint64_t mpsd_state_write_pair(uint64_t *to, const uint64_t *from, uint64_t key, uint64_t place)
{
	uint64_t one = __atomic_load_n(&from[0], __ATOMIC_RELAXED), other = __atomic_load_n(&from[1], __ATOMIC_RELAXED);

	MPSD_STATE_STORE(&to[0], one, MPSD_STATE_STORE_WORD);
	MPSD_STATE_STORE(&to[1], other, MPSD_STATE_STORE_WORD);
	return mpsd_state_mix(one ^ key, other ^ place);
}

/* Brings a slot up to the record. */
static inline void mpsd_state_fill(struct mpsd_state *state, unsigned slot)
{
	uint64_t *to = state->slots + slot * state->lines * MPSD_STATE_WORDS;
	uint64_t *digests = state->digests + slot * state->lines;
	uint64_t *stale = state->stale + slot * state->groups;
	const uint64_t *record = state->record;
	uint64_t sum = state->sum[slot], groups = state->groups;

	for (uint64_t group = 0; group < groups; group++) {
		uint64_t bits = stale[group];

		for (stale[group] = 0; bits; bits &= bits - 1) {
			uint64_t line = group * 64 + (uint64_t)__builtin_ctzll(bits), place = mpsd_state_place(line);
			const uint64_t *here = record + line * MPSD_STATE_WORDS;
			uint64_t *there = to + line * MPSD_STATE_WORDS;
			uint64_t digest = MPSD_STATE_LINE_DIGEST(mpsd_state_write_pair, there, here, place);

			sum += digest - digests[line];
			digests[line] = digest;
		}
	}
	state->sum[slot] = sum;
}

MPSD_API int mpsd_state_publish(struct mpsd_state *state)
{
	uint64_t sequence = state->published.sequence + 1;
	unsigned slot = (unsigned)(sequence % MPSD_STATE_SLOTS);

	if (!*state->is_ours)
		return -ECHILD;
	/* Release: who sees it sees the mark of the update before, too; pairs with mpsd_state_scan. */
	MPSD_STATE_STORE(&state->control->mark[slot], 2 * sequence - 1, __ATOMIC_RELEASE);
	/* A reader that sees a word written below sees the mark above; pairs with the fence in mpsd_state_copy. */
	MPSD_STATE_FENCE(__ATOMIC_RELEASE);
	mpsd_state_fill(state, slot);
	MPSD_STATE_STORE(&state->control->digest[slot], mpsd_state_seal(state->sum[slot], sequence, state->salt),
			 MPSD_STATE_STORE_WORD);
	/* A reader that sees this sees all words written above; pairs with mpsd_state_scan. */
	MPSD_STATE_STORE(&state->control->mark[slot], 2 * sequence, __ATOMIC_RELEASE);
	state->published.sequence = sequence;
	return 0;
}

MPSD_API int mpsd_state_update(struct mpsd_state *state, uint64_t offset, uint64_t bytes)
{
	int rc = mpsd_state_changed(state, offset, bytes);

	return rc < 0 ? rc : mpsd_state_publish(state);
}

MPSD_API int mpsd_state_work(struct mpsd_state *state, int is_busy)
{
	struct timespec now;
	uint64_t now_ns, since_ns;

	if (!*state->is_ours)
		return -ECHILD;
	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
	since_ns = state->control->since_ns; /* only this process writes it */
	if (!is_busy == !since_ns)
		return 0;
	if (since_ns)
		MPSD_STATE_STORE(&state->control->busy_ns, state->control->busy_ns + now_ns - since_ns, __ATOMIC_RELAXED);
	MPSD_STATE_STORE(&state->control->since_ns, is_busy ? now_ns : 0, __ATOMIC_RELAXED);
	return 0;
}

#endif
