/* SPDX-License-Identifier: MIT */
/* honest.h: updates by which a test detects any mixture: every word has the number of the update that changed it last,
 * and its place. */
#ifndef HONEST_H
#define HONEST_H

#include <inttypes.h>

#define CHECK(condition, ...)                                                                                                  \
	do {                                                                                                                   \
		if (!(condition)) {                                                                                            \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                        \
			fprintf(stderr, __VA_ARGS__);                                                                          \
			fputc('\n', stderr);                                                                                   \
			_exit(1);                                                                                              \
		}                                                                                                              \
	} while (0)

/* The first update changes everything; update n then one third of the record, by turns. */
static inline uint64_t honest_word(uint64_t n, uint64_t word, uint64_t words)
{
	uint64_t age = words < 3 ? 0 : (n + 3 - word * 3 / words) % 3;

	return ((n > age ? n - age : 1) << 32) ^ (word * 0x9e3779b97f4a7c15u);
}

/* Update n as a program makes it: it writes its changes into the record, and publishes them. */
static inline int honest_publish(struct mpsd_state *state, uint64_t n)
{
	uint64_t words = mpsd_state_bytes(state) / 8, first = words, end = 0;
	uint64_t *record = (uint64_t *)mpsd_state_record(state);

	for (uint64_t word = 0; word < words; word++)
		if (words < 3 || n == 1 || n % 3 == word * 3 / words) {
			record[word] = honest_word(n, word, words);
			first = word < first ? word : first;
			end = word + 1;
		}
	return mpsd_state_update(state, first * 8, (end - first) * 8);
}

static inline int is_honest(const void *record, uint64_t bytes, uint64_t n)
{
	for (uint64_t word = 0; word < bytes / 8; word++)
		if (((const uint64_t *)record)[word] != honest_word(n, word, bytes / 8))
			return 0;
	return 1;
}

static inline uint64_t next_random(uint64_t *seed) /* splitmix64 */
{
	uint64_t mixed = *seed += 0x9e3779b97f4a7c15u;

	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
	return mixed ^ (mixed >> 31);
}

#endif
