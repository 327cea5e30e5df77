/* SPDX-License-Identifier: MIT */
/*
 * mpsd_image.h: blocks of an image are read and hashed (mpsd/images/blocks.py); the simulator hashes with it too.
 */
#ifndef MPSD_IMAGE_H
#define MPSD_IMAGE_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#endif

enum { MPSD_BLOCK_BYTES = 2097152, MPSD_BLOCK_SUMS = 4, MPSD_BLOCK_KEY_BYTES = 2097200 }; /* block; numbers of a hash; key */

/*
 * The hash of a block, NH (UMAC, RFC 4418) with four Toeplitz iterations:
 *     sums[n] = sum over all i of (w[2i] + k[2i + 4n]) * (w[2i + 1] + k[2i + 1 + 4n])   modulo 2^64,
 * with the 32-bit words w of the block and k of the key, the additions in brackets modulo 2^32. native/kernel has it for the GPU.
 */
static void mpsd_hash_block(const uint32_t *words, const uint32_t *key, uint64_t *sums);

/*
 * Read the block in this slot of the file, and hash it. Returns 0, or -1 with errno: EIO where the file ends. Memory or a file
 * system that does not suit O_DIRECT is served without. Any thread; other threads may read the same file.
 */
static int mpsd_read_block(int file, uint32_t slot, void *into, const uint32_t *key, uint64_t *sums);

#ifndef MPSD_CDEF
enum { MPSD_PART_BYTES = 262144 }; /* read and hashed at a time: it fits into the cache of a core */

static inline void mpsd_hash_part(const uint32_t *words, size_t bytes, const uint32_t *key, uint64_t *sums)
{
	uint64_t first = 0, second = 0, third = 0, fourth = 0;

	for (size_t i = 0; i < bytes / 4; i += 2) {
		const uint32_t *k = key + i;
		uint32_t even = words[i], odd = words[i + 1];

		first += (uint64_t)(uint32_t)(even + k[0]) * (uint32_t)(odd + k[1]);
		second += (uint64_t)(uint32_t)(even + k[4]) * (uint32_t)(odd + k[5]);
		third += (uint64_t)(uint32_t)(even + k[8]) * (uint32_t)(odd + k[9]);
		fourth += (uint64_t)(uint32_t)(even + k[12]) * (uint32_t)(odd + k[13]);
	}
	sums[0] += first;
	sums[1] += second;
	sums[2] += third;
	sums[3] += fourth;
}

static inline void mpsd_hash_block(const uint32_t *words, const uint32_t *key, uint64_t *sums)
{
	memset(sums, 0, MPSD_BLOCK_SUMS * sizeof(*sums));
	mpsd_hash_part(words, MPSD_BLOCK_BYTES, key, sums);
}

static inline int mpsd_read_part(int file, off_t at, char *into, size_t bytes)
{
	int is_last_try = 0;

	for (size_t done = 0; done < bytes;) {
		ssize_t found = pread(file, into + done, bytes - done, at + (off_t)done);

		if (found > 0) {
			done += (size_t)found;
		} else if (found == 0) {
			errno = EIO;
			return -1;
		} else if (errno == EINVAL && !is_last_try) {
			fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_DIRECT); /* another thread may have done it before */
			is_last_try = 1;
		} else if (errno != EINTR) {
			return -1;
		}
	}
	return 0;
}

static inline int mpsd_read_block(int file, uint32_t slot, void *into, const uint32_t *key, uint64_t *sums)
{
	memset(sums, 0, MPSD_BLOCK_SUMS * sizeof(*sums));
	for (size_t at = 0; at < MPSD_BLOCK_BYTES; at += MPSD_PART_BYTES) {
		char *part = (char *)into + at;

		if (mpsd_read_part(file, (off_t)slot * MPSD_BLOCK_BYTES + (off_t)at, part, MPSD_PART_BYTES))
			return -1;
		mpsd_hash_part((const uint32_t *)part, MPSD_PART_BYTES, key + at / 4, sums);
	}
	return 0;
}
#endif

#endif
