/* SPDX-License-Identifier: MIT */
/*
 * mpsd_parity.h: the parity of blocks of 2 MiB (mpsd/images/parity.py).  The parity of some blocks is their XOR; so each of them is the
 * XOR of the parity and the others.
 */
#ifndef MPSD_PARITY_H
#define MPSD_PARITY_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

/*
 * Write the XOR of `count` blocks, one at least, to `into`, which may be one of them; all are aligned to 8 bytes. Any thread; it reads each
 * block once.
 */
static void mpsd_xor_blocks(void *into, int count, const void *const *blocks);

#ifndef MPSD_CDEF
enum { MPSD_XOR_BLOCK = 2097152, MPSD_XOR_PART = 8192 }; /* bytes; a part of the result stays in the core's cache */

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define MPSD_XOR_CLONES __attribute__((target_clones("avx2", "default"))) /* which one is chosen when the library is loaded */
#else
#define MPSD_XOR_CLONES
#endif

MPSD_XOR_CLONES
static void mpsd_xor_part(uint64_t *restrict into, const uint64_t *restrict with)
{
	for (size_t i = 0; i < MPSD_XOR_PART / sizeof(*into); i++)
		into[i] ^= with[i];
}

static inline void mpsd_xor_blocks(void *into, int count, const void *const *blocks)
{
	uint64_t sum[MPSD_XOR_PART / sizeof(uint64_t)];

	for (size_t at = 0; at < MPSD_XOR_BLOCK; at += MPSD_XOR_PART) {
		memcpy(sum, (const char *)blocks[0] + at, sizeof(sum));
		for (int i = 1; i < count; i++)
			mpsd_xor_part(sum, (const uint64_t *)((const char *)blocks[i] + at));
		memcpy((char *)into + at, sum, sizeof(sum)); /* last: it may be a part of one of them */
	}
}
#endif

#endif
