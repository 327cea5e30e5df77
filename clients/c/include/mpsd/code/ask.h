/* SPDX-License-Identifier: MIT */
/* mpsd/code/ask.h: ask mpsd about an arena and for access to it. */
#ifndef MPSD_CODE_ASK_H
#define MPSD_CODE_ASK_H

struct mpsd_facts { /* mpsd's facts about an arena */
	uint64_t id, base, window_bytes, capacity_bytes, allocations, layout_bytes, generation;
	uint64_t state_serial; /* of the forward state that is kept; 0: none is */
	uint64_t openings; /* arena.open: how many times this process has asked for it since it has it; else 0 */
	int is_sealed;
	char gpu[64];
	char layout_hash[65];
};

static inline int mpsd_broken(struct mpsd_session *session, const char *method, const char *what)
{
	return mpsd_fail(session, -EPROTO, 0, 0, "%s: mpsd's answer is wrong: %s", method, what);
}

static inline int mpsd_read_facts(struct mpsd_session *session, const char *method, const struct mpsd_unpack *result,
				  struct mpsd_facts *facts)
{
	struct mpsd_unpack at;

	memset(facts, 0, sizeof(*facts));
	if (mpsd_unpack_find_uint(result, "id", &facts->id) < 0 || mpsd_unpack_find_uint(result, "base", &facts->base) < 0 ||
	    mpsd_unpack_find_uint(result, "window_bytes", &facts->window_bytes) < 0 ||
	    mpsd_unpack_find_uint(result, "capacity_bytes", &facts->capacity_bytes) < 0 ||
	    mpsd_unpack_find_uint(result, "allocations", &facts->allocations) < 0 ||
	    mpsd_unpack_find_uint(result, "layout_bytes", &facts->layout_bytes) < 0 ||
	    mpsd_unpack_find_uint(result, "generation", &facts->generation) < 0 ||
	    mpsd_unpack_find_uint(result, "state_serial", &facts->state_serial) < 0 ||
	    mpsd_unpack_find(result, "is_sealed", &at) < 0 || mpsd_unpack_bool(&at, &facts->is_sealed) < 0)
		return mpsd_broken(session, method, "an arena lacks a field");
	if (!facts->base || !facts->window_bytes || facts->base % MPSD_GRANULE || facts->window_bytes % MPSD_GRANULE ||
	    facts->base + facts->window_bytes < facts->base)
		return mpsd_broken(session, method, "the window is no range of addresses");
	if (mpsd_unpack_find_uint(result, "openings", &facts->openings) < 0)
		facts->openings = 0;
	mpsd_copy_text(result, "gpu", facts->gpu, sizeof(facts->gpu));
	mpsd_copy_text(result, "layout_hash", facts->layout_hash, sizeof(facts->layout_hash));
	return 0;
}

/* The parameters of a method that takes one text, "name". */
static inline int mpsd_pack_name(struct mpsd_session *session, struct mpsd_pack *pack, unsigned char *bytes, size_t room,
				 const char *method, const char *name)
{
	mpsd_pack_begin(pack, bytes, room);
	mpsd_pack_map(pack, 1);
	mpsd_pack_text(pack, "name");
	mpsd_pack_text(pack, name);
	if (pack->failed)
		return mpsd_fail(session, -EINVAL, 0, 0, "%s: the name of an arena has at most 128 characters", method);
	return 0;
}

/* The same for a request that is answered with an arena's facts. facts may be NULL. */
static inline int mpsd_ask_by_name(struct mpsd_session *session, const char *method, const char *name, struct mpsd_facts *facts)
{
	unsigned char bytes[256];
	struct mpsd_answer answer;
	struct mpsd_pack pack;
	int rc;

	rc = mpsd_pack_name(session, &pack, bytes, sizeof(bytes), method, name);
	if (rc == 0)
		rc = mpsd_call(session, method, bytes, pack.used, NULL, 0, 1, 0, &answer);
	if (rc < 0)
		return rc;
	if (facts)
		rc = mpsd_read_facts(session, method, &answer.result, facts);
	mpsd_answer_clear(&answer);
	return rc;
}

/* The parameters of arena.open. */
struct mpsd_wish {
	const char *name;
	enum mpsd_access access;
	unsigned takes; /* how much of what is committed is to come with the answer */
	uint64_t known; /* the commit already mapped here: mpsd sends no descriptors for memory that it contains */
};

/* Ask for access once. A request that may wait uses a separate connection, so that other requests do not wait for it. */
static inline int mpsd_ask_access(struct mpsd_session *session, const struct mpsd_wish *wish, double wait_seconds,
				  struct mpsd_answer *answer)
{
	unsigned char bytes[256];
	struct mpsd_pack pack;

	mpsd_pack_begin(&pack, bytes, sizeof(bytes));
	mpsd_pack_map(&pack, 5);
	mpsd_pack_text(&pack, "name");
	mpsd_pack_text(&pack, wish->name);
	mpsd_pack_text(&pack, "access");
	mpsd_pack_text(&pack, wish->access == MPSD_WRITE ? "write" : "read");
	mpsd_pack_text(&pack, "wait_seconds");
	mpsd_pack_double(&pack, wait_seconds);
	mpsd_pack_text(&pack, "takes");
	mpsd_pack_uint(&pack, wish->takes);
	mpsd_pack_text(&pack, "known");
	mpsd_pack_uint(&pack, wish->known);
	return mpsd_call(session, "arena.open", bytes, pack.used, NULL, 0, 1, wait_seconds, answer);
}

/* "id", and "generation" where the method has it; so many other fields follow. */
static inline void mpsd_pack_arena(struct mpsd_pack *pack, void *bytes, size_t room, uint64_t id, uint64_t generation, uint32_t others)
{
	mpsd_pack_begin(pack, bytes, room);
	mpsd_pack_map(pack, (generation ? 2 : 1) + others);
	mpsd_pack_text(pack, "id");
	mpsd_pack_uint(pack, id);
	if (generation) {
		mpsd_pack_text(pack, "generation");
		mpsd_pack_uint(pack, generation);
	}
}

/* Return access to mpsd. Succeeds also if this process did not have it. openings: return it only if this process has not asked
 * more often than this, because otherwise another part of the process has the arena open; 0: always. */
static inline int mpsd_give_back(struct mpsd_session *session, uint64_t id, uint64_t openings)
{
	unsigned char bytes[64];
	struct mpsd_pack pack;
	int rc;

	mpsd_pack_arena(&pack, bytes, sizeof(bytes), id, 0, openings ? 1 : 0);
	if (openings) {
		mpsd_pack_text(&pack, "openings");
		mpsd_pack_uint(&pack, openings);
	}
	rc = mpsd_call(session, "arena.close", bytes, pack.used, NULL, 0, 1, 0, NULL);
	return rc == -ENOENT || rc == -EACCES ? 0 : rc;
}

/* The same after a failure; keeps that failure's error text. */
static inline void mpsd_give_back_quietly(struct mpsd_session *session, uint64_t id, uint64_t openings)
{
	struct mpsd_words kept;
	int has_words = mpsd_keep_words(session, &kept);

	mpsd_give_back(session, id, openings);
	if (has_words)
		mpsd_restore_words(session, &kept);
}

#endif
