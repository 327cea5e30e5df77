/* SPDX-License-Identifier: MIT */
/*
 * mpsd_parity.h: the parity of blocks of 2 MiB (mpsd/images/parity.py). Of the blocks D[0], D[1], ... it is
 *     P = D[0] + D[1] + D[2] + ...              Q = D[0] + 2 D[1] + 4 D[2] + ...
 * bytewise in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, as of RAID 6: + is XOR. P gives any one block, both give any two.
 */
#ifndef MPSD_PARITY_H
#define MPSD_PARITY_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

/*
 * Write the parity of `count` blocks; q may be null, and p or q may be one of the blocks. A null block is one of zeros. All are aligned to 8
 * bytes. Any thread; it reads each block once.
 */
static void mpsd_parity(int count, const void *const *blocks, void *p, void *q);

/* Write a times x plus b times y to `into`, which may be one of the blocks x and y. Any thread. */
static void mpsd_parity_combine(uint8_t a, const void *x, uint8_t b, const void *y, void *into);

#ifndef MPSD_CDEF
enum { MPSD_PARITY_BLOCK = 2097152, MPSD_PARITY_WORDS = 512 }; /* bytes; words at a time, which stay in the core's cache */

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define MPSD_PARITY_CLONES __attribute__((target_clones("avx2", "default"))) /* which one is chosen when the library is loaded */
#else
#define MPSD_PARITY_CLONES
#endif

/* Twice each byte of a word: shifted, and reduced where a bit fell out. */
static inline uint64_t mpsd_twice(uint64_t word)
{
	uint64_t out = word & UINT64_C(0x8080808080808080);
	uint64_t reduce = (out << 1) - (out >> 7); /* 0xff in each byte of which a bit fell out */

	return ((word << 1) & UINT64_C(0xfefefefefefefefe)) ^ (reduce & UINT64_C(0x1d1d1d1d1d1d1d1d));
}

MPSD_PARITY_CLONES
static void mpsd_add_words(uint64_t *restrict sum, const uint64_t *restrict with)
{
	for (size_t i = 0; i < MPSD_PARITY_WORDS; i++)
		sum[i] ^= with[i];
}

MPSD_PARITY_CLONES
static void mpsd_double_words(uint64_t *sum)
{
	for (size_t i = 0; i < MPSD_PARITY_WORDS; i++)
		sum[i] = mpsd_twice(sum[i]);
}

MPSD_PARITY_CLONES
static void mpsd_double_and_add_words(uint64_t *restrict sum, uint64_t *restrict other, const uint64_t *restrict with)
{
	for (size_t i = 0; i < MPSD_PARITY_WORDS; i++) {
		uint64_t word = with[i];

		other[i] ^= word;
		sum[i] = mpsd_twice(sum[i]) ^ word;
	}
}

static inline void mpsd_parity(int count, const void *const *blocks, void *p, void *q)
{
	uint64_t of_p[MPSD_PARITY_WORDS], of_q[MPSD_PARITY_WORDS];

	for (size_t at = 0; at < MPSD_PARITY_BLOCK; at += sizeof(of_p)) {
		memset(of_p, 0, sizeof(of_p));
		memset(of_q, 0, sizeof(of_q));
		for (int i = count - 1; i >= 0; i--) { /* Horner's rule */
			const uint64_t *words = blocks[i] ? (const uint64_t *)((const char *)blocks[i] + at) : NULL;

			if (!q && words)
				mpsd_add_words(of_p, words);
			else if (words)
				mpsd_double_and_add_words(of_q, of_p, words);
			else if (q)
				mpsd_double_words(of_q);
		}
		memcpy((char *)p + at, of_p, sizeof(of_p)); /* last: p and q may be blocks */
		if (q)
			memcpy((char *)q + at, of_q, sizeof(of_q));
	}
}

/* Add `factor` times the words to the sum. */
static inline void mpsd_add_times(uint64_t *sum, uint8_t factor, const void *block, size_t at)
{
	uint64_t times[MPSD_PARITY_WORDS] = { 0 };

	for (int bit = 0x80; bit; bit >>= 1) {
		mpsd_double_words(times);
		if (factor & bit)
			mpsd_add_words(times, (const uint64_t *)((const char *)block + at));
	}
	mpsd_add_words(sum, times);
}

static inline void mpsd_parity_combine(uint8_t a, const void *x, uint8_t b, const void *y, void *into)
{
	for (size_t at = 0; at < MPSD_PARITY_BLOCK; at += MPSD_PARITY_WORDS * sizeof(uint64_t)) {
		uint64_t sum[MPSD_PARITY_WORDS] = { 0 };

		mpsd_add_times(sum, a, x, at);
		mpsd_add_times(sum, b, y, at);
		memcpy((char *)into + at, sum, sizeof(sum));
	}
}
#endif

#endif
