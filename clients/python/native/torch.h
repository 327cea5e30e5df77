/* SPDX-License-Identifier: MIT */
/* PyTorch's pluggable allocator, on arenas: two functions that PyTorch finds by name in this module, and what they act on.
 *
 * Which arena memory comes from is chosen by thread and device, as PyTorch's pools are.  Where it goes back to is remembered for
 * each piece, since PyTorch frees at any time, in any thread.
 */
#ifndef MPSD_CLIENT_TORCH_H
#define MPSD_CLIENT_TORCH_H

#include <mpsd.h>
#include <sys/types.h>

#define MPSD_EXPORT __attribute__((visibility("default")))

enum { MPSD_TORCH_DEVICES = 64 };

struct mpsd_torch_piece {
	void *address;
	struct mpsd_arena *arena;
	int is_over; /* PyTorch gave it back, and its memory waits for the GPU to be waited for */
};

static _Thread_local struct mpsd_arena *mpsd_torch_chosen[MPSD_TORCH_DEVICES];
static pthread_mutex_t mpsd_torch_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the pieces; an arena's is taken under it */
static struct mpsd_torch_piece *mpsd_torch_pieces;
static size_t mpsd_torch_count, mpsd_torch_room;

/* Select the arena for this thread, from now on; NULL: none. Returns the previous one; NULL also for an impossible device. */
static struct mpsd_arena *mpsd_torch_use(int device, struct mpsd_arena *arena)
{
	struct mpsd_arena *before;

	if (device < 0 || device >= MPSD_TORCH_DEVICES)
		return NULL;
	before = mpsd_torch_chosen[device];
	mpsd_torch_chosen[device] = arena;
	return before;
}

/* Called before an arena is closed: PyTorch may free its memory at any later time, and such a call must have no effect. Returns
 * how many pieces PyTorch still has. */
static int mpsd_torch_forget(struct mpsd_arena *arena)
{
	size_t kept = 0, all;

	pthread_mutex_lock(&mpsd_torch_lock);
	all = mpsd_torch_count;
	for (size_t i = 0; i < all; i++)
		if (mpsd_torch_pieces[i].arena != arena)
			mpsd_torch_pieces[kept++] = mpsd_torch_pieces[i];
	mpsd_torch_count = kept;
	pthread_mutex_unlock(&mpsd_torch_lock);
	for (int i = 0; i < MPSD_TORCH_DEVICES; i++)
		if (mpsd_torch_chosen[i] == arena)
			mpsd_torch_chosen[i] = NULL;
	return (int)(all - kept);
}

/* So that one more can be remembered.  Under the lock. */
static int mpsd_torch_prepare(void)
{
	size_t more = mpsd_torch_room ? 2 * mpsd_torch_room : 64;
	struct mpsd_torch_piece *grown;

	if (mpsd_torch_count < mpsd_torch_room)
		return 0;
	grown = realloc(mpsd_torch_pieces, more * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	mpsd_torch_pieces = grown;
	mpsd_torch_room = more;
	return 0;
}

/* What PyTorch gave back of this arena goes.  The GPU may still be at work on it, and to unmap memory does not wait as cudaFree
 * does: so we wait, where a context of the arena's GPU is current; elsewhere it stays until one is.  Under the lock. */
static void mpsd_torch_settle(struct mpsd_arena *arena)
{
	CUdevice current = -1;
	int is_idle = 0;

	for (size_t i = mpsd_torch_count; i-- > 0;) {
		struct mpsd_torch_piece *piece = &mpsd_torch_pieces[i];

		if (piece->arena != arena || !piece->is_over)
			continue;
		if (!is_idle && (arena->driver.cuCtxGetDevice(&current) != CUDA_SUCCESS || current != arena->device ||
				 arena->driver.cuCtxSynchronize() != CUDA_SUCCESS))
			return;
		is_idle = 1;
		mpsd_arena_free(arena, (uint64_t)(uintptr_t)piece->address);
		*piece = mpsd_torch_pieces[--mpsd_torch_count];
	}
}

/* NULL: PyTorch raises its OutOfMemoryError; mpsd_error() of this thread has the reason. */
MPSD_EXPORT void *mpsd_torch_alloc(ssize_t size, int device, void *stream)
{
	struct mpsd_arena *arena = device >= 0 && device < MPSD_TORCH_DEVICES ? mpsd_torch_chosen[device] : NULL;
	struct mpsd_torch_piece piece;
	uint64_t address = 0;

	(void)stream; /* the memory is new: no work uses it yet */
	if (!arena || size <= 0)
		return NULL;
	pthread_mutex_lock(&mpsd_torch_lock);
	mpsd_torch_settle(arena);
	if (mpsd_torch_prepare() == 0 && mpsd_arena_alloc(arena, (uint64_t)size, &address) == 0) {
		piece.address = (void *)(uintptr_t)address;
		piece.arena = arena;
		piece.is_over = 0;
		mpsd_torch_pieces[mpsd_torch_count++] = piece;
	}
	pthread_mutex_unlock(&mpsd_torch_lock);
	return (void *)(uintptr_t)address;
}

/* At any time, in any thread; what is not known here any more is left alone. */
MPSD_EXPORT void mpsd_torch_free(void *address, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream;
	pthread_mutex_lock(&mpsd_torch_lock);
	for (size_t i = mpsd_torch_count; i-- > 0;)
		if (mpsd_torch_pieces[i].address == address && !mpsd_torch_pieces[i].is_over) {
			mpsd_torch_pieces[i].is_over = 1;
			mpsd_torch_settle(mpsd_torch_pieces[i].arena);
			break;
		}
	pthread_mutex_unlock(&mpsd_torch_lock);
}

#endif
