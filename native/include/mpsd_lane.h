/* SPDX-License-Identifier: MIT */
/*
 * mpsd_lane.h: blocks of an image are read and sent to a GPU, which hashes them (mpsd/images/imager/lanes.py).
 */
#ifndef MPSD_LANE_H
#define MPSD_LANE_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include "mpsd_image.h"
#endif

enum {
	MPSD_LANE_BUFFERS = 4,
	MPSD_LANE_PIECES = 2,  /* one is read while the GPU works on the one before */
	MPSD_PIECE_BLOCKS = 8, /* most */
	MPSD_BLOCK_PARTS = 16  /* a block is hashed by so many CUDA blocks */
};

struct mpsd_gpu { /* functions of the driver, of these names; each returns 0 or an error */
	int (*cuMemcpyHtoDAsync)(uint64_t to, const void *from, size_t bytes, void *stream);
	int (*cuEventRecord)(void *event, void *stream);
	int (*cuEventSynchronize)(void *event);
	int (*cuLaunchKernel)(void *function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads_x,
			      unsigned int threads_y, unsigned int threads_z, unsigned int shared_bytes, void *stream, void **values,
			      void **more);
};

struct mpsd_piece { /* in pinned memory, which the GPU uses where it is */
	uint64_t addresses[MPSD_PIECE_BLOCKS]; /* of the blocks, on the GPU */
	uint64_t sums[MPSD_PIECE_BLOCKS][MPSD_BLOCK_PARTS][MPSD_BLOCK_SUMS];
};

struct mpsd_lane { /* a stream with buffers, for one thread */
	struct mpsd_gpu gpu;
	void *stream, *kernel;
	void *copied[MPSD_LANE_BUFFERS]; /* events of the buffers */
	void *hashed[MPSD_LANE_PIECES];  /* events of the pieces */
	char *buffers;   /* pinned, one after the other */
	struct mpsd_piece *pieces;
	uint64_t key; /* of the hash, on the GPU */
	uint32_t buffer_bytes, most_cuda_blocks, cuda_block_threads;
	uint32_t used; /* buffers, so far */
	int error;     /* of the driver, after -1 */
};

/*
 * Read block slots[i] of the file files[i] for each i below count to addresses[i] of the GPU, and let the GPU hash them. The
 * context is current. Returns when the last copy is enqueued: the number of blocks that could be read, with errno as
 * mpsd_read_block has it if that is not count; or -1, if a call of the driver failed.
 */
static int mpsd_lane_send(struct mpsd_lane *lane, int piece, int count, const int *files, const uint32_t *slots, const uint64_t *addresses);

/* Wait until the GPU has the first `count` blocks of the piece, and give their sums, four for each. Returns 0, or -1 as above. */
static int mpsd_lane_wait(struct mpsd_lane *lane, int piece, int count, uint64_t *sums);

#ifndef MPSD_CDEF
/* In parts of the size of a buffer. Return 0, errno, or -1: the driver. */
static inline int mpsd_lane_send_block(struct mpsd_lane *lane, int file, uint32_t slot, uint64_t address)
{
	for (size_t at = 0; at < MPSD_BLOCK_BYTES; at += lane->buffer_bytes) {
		uint32_t which = lane->used++ % MPSD_LANE_BUFFERS;
		char *buffer = lane->buffers + (size_t)which * lane->buffer_bytes;

		lane->error = lane->gpu.cuEventSynchronize(lane->copied[which]);
		if (lane->error)
			return -1;
		if (mpsd_read_part(file, (off_t)slot * MPSD_BLOCK_BYTES + (off_t)at, buffer, lane->buffer_bytes))
			return errno;
		lane->error = lane->gpu.cuMemcpyHtoDAsync(address + at, buffer, lane->buffer_bytes, lane->stream);
		if (!lane->error)
			lane->error = lane->gpu.cuEventRecord(lane->copied[which], lane->stream);
		if (lane->error)
			return -1;
	}
	return 0;
}

static inline int mpsd_lane_hash(struct mpsd_lane *lane, int piece, int count)
{
	struct mpsd_piece *to = &lane->pieces[piece];
	uint64_t addresses = (uint64_t)to->addresses, sums = (uint64_t)to->sums, no_copy = 0, parts = MPSD_BLOCK_PARTS;
	uint64_t number = (uint64_t)count;
	void *values[] = { &addresses, &number, &lane->key, &sums, &no_copy, &parts };
	uint32_t grid = (uint32_t)count * MPSD_BLOCK_PARTS;

	if (grid > lane->most_cuda_blocks)
		grid = lane->most_cuda_blocks;
	lane->error = lane->gpu.cuLaunchKernel(lane->kernel, grid, 1, 1, lane->cuda_block_threads, 1, 1, 0, lane->stream, values, NULL);
	if (!lane->error)
		lane->error = lane->gpu.cuEventRecord(lane->hashed[piece], lane->stream);
	return lane->error ? -1 : 0;
}

static inline int mpsd_lane_send(struct mpsd_lane *lane, int piece, int count, const int *files, const uint32_t *slots, const uint64_t *addresses)
{
	int sent = 0, error = 0;

	for (; sent < count && !error; sent += !error) {
		error = mpsd_lane_send_block(lane, files[sent], slots[sent], addresses[sent]);
		lane->pieces[piece].addresses[sent] = addresses[sent];
	}
	if (error < 0 || (sent && mpsd_lane_hash(lane, piece, sent)))
		return -1;
	errno = error;
	return sent;
}

static inline int mpsd_lane_wait(struct mpsd_lane *lane, int piece, int count, uint64_t *sums)
{
	lane->error = lane->gpu.cuEventSynchronize(lane->hashed[piece]);
	if (lane->error)
		return -1;
	memset(sums, 0, (size_t)count * MPSD_BLOCK_SUMS * sizeof(*sums));
	for (int i = 0; i < count; i++)
		for (int part = 0; part < MPSD_BLOCK_PARTS; part++)
			for (int which = 0; which < MPSD_BLOCK_SUMS; which++)
				sums[i * MPSD_BLOCK_SUMS + which] += lane->pieces[piece].sums[i][part][which];
	return 0;
}
#endif

#endif
