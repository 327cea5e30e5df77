/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/state_digest.h: the words of a state's memory, and the digest that proves a record.
 *
 * The digest is there for stray writes, not against a forger: the writer's process can always publish a lie.  It is a sum over
 * the lines, so that a writer who changed one line need not look at the others.
 */
#ifndef MPSD_CODE_STATE_DIGEST_H
#define MPSD_CODE_STATE_DIGEST_H

enum { MPSD_STATE_WORDS = 8 }; /* in a line */

#ifndef MPSD_STATE_STEP /* a test stops here: before every access to what is shared */
#define MPSD_STATE_STEP() ((void)0)
#endif

/* The words of a record are ordered against its marks by fences.  ThreadSanitizer does not know fences: there the words carry
 * the order themselves, which on x86 are the same instructions. */
#if defined(__SANITIZE_THREAD__)
#define MPSD_STATE_NO_FENCES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MPSD_STATE_NO_FENCES
#endif
#endif
#ifdef MPSD_STATE_NO_FENCES
#define MPSD_STATE_FENCE(order) ((void)0)
#define MPSD_STATE_STORE_WORD __ATOMIC_RELEASE
#define MPSD_STATE_LOAD_WORD __ATOMIC_ACQUIRE
#else
#define MPSD_STATE_FENCE(order) __atomic_thread_fence(order)
#define MPSD_STATE_STORE_WORD __ATOMIC_RELAXED
#define MPSD_STATE_LOAD_WORD __ATOMIC_RELAXED
#endif

/* Macros, since the order must be a constant. */
#define MPSD_STATE_STORE(address, value, order)                                                                                \
	do {                                                                                                                   \
		MPSD_STATE_STEP();                                                                                             \
		__atomic_store_n((address), (value), (order));                                                                 \
	} while (0)
#define MPSD_STATE_LOAD(value, address, order)                                                                                 \
	do {                                                                                                                   \
		MPSD_STATE_STEP();                                                                                             \
		(value) = __atomic_load_n((address), (order));                                                                 \
	} while (0)

static inline uint64_t mpsd_state_mix(uint64_t one, uint64_t other)
{
	__extension__ unsigned __int128 product = (unsigned __int128)one * other;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A line is four pairs of words, each with its own key: digits of pi. The same words on another line give another digest, since
 * the line's number is part of it. Written out, since an unrolled loop is three times as fast. */
#define MPSD_STATE_LINE_DIGEST(pair_digest, to, from, place)                                                                   \
	(pair_digest((to), (from), 0x243f6a8885a308d3u, (place)) + pair_digest((to) + 2, (from) + 2, 0x13198a2e03707344u, (place)) + \
	 pair_digest((to) + 4, (from) + 4, 0xa4093822299f31d0u, (place)) + pair_digest((to) + 6, (from) + 6, 0x082efa98ec4e6c89u, (place)))

static inline uint64_t mpsd_state_place(uint64_t line)
{
	return (line + 1) * 0x9e3779b97f4a7c15u;
}

/* Of the head, for every digest of this memfd. */
static inline uint64_t mpsd_state_salt(const struct mpsd_state_head *head)
{
	return mpsd_state_mix(head->generation ^ 0x452821e638d01377u, head->schema_hash ^ 0xbe5466cf34e90c6cu) ^ head->record_bytes;
}

/* The digest of a record: the sum of its lines' digests, the update's number, and the writer's identity. */
static inline uint64_t mpsd_state_seal(uint64_t sum, uint64_t sequence, uint64_t salt)
{
	return mpsd_state_mix(sum ^ 0xc0ac29b7c97c50ddu, (sequence * 0x9e3779b97f4a7c15u) ^ salt) + sum;
}

/* FNV-1a. */
static inline uint64_t mpsd_state_hash(const char *text, size_t bytes)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
	return hash;
}

static inline uint64_t mpsd_state_lines(uint64_t record_bytes)
{
	return (record_bytes + MPSD_STATE_LINE - 1) / MPSD_STATE_LINE;
}

/* Of the control line and the slots, which is all that is mapped. */
static inline size_t mpsd_state_shared_bytes(uint64_t lines)
{
	return sizeof(struct mpsd_state_control) + (size_t)(MPSD_STATE_SLOTS * lines * MPSD_STATE_LINE);
}

#endif
