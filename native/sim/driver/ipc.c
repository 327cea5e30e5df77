/* Memory of cuMemAlloc, given to other processes by a handle of 64 bytes.
 *
 * It is the process's alone until then; from then on it is a block of the machine, at the same address with the same bytes.
 */
#include "driver.h"
#include "spans.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAGIC = 0x49504331, LAZY_PEER_ACCESS = 1, PAGE = 4096, CHUNK_PAGES = 512 };

struct handle { /* in the 64 bytes; untrusted, since any process may have written them */
	uint32_t magic;
	int32_t pid;
	uint64_t block;
	uint64_t bytes;
	uint32_t gpu;
	uint32_t reserved;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it fits in");

struct opened {
	struct span span; /* first; base: the block's id */
	CUdeviceptr address;
	CUcontext context;
	unsigned count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `opened`, and changing what lies behind an address */
static struct spans opened;

/* Only pages that were touched: the rest is zeros, and costs nothing. */
static void copy_touched(unsigned char *to, unsigned char *from, size_t bytes)
{
	unsigned char is_there[CHUNK_PAGES];

	for (size_t at = 0; at < bytes; at += CHUNK_PAGES * PAGE) {
		size_t pages = (bytes - at) / PAGE < CHUNK_PAGES ? (bytes - at) / PAGE : CHUNK_PAGES;

		if (mincore(from + at, pages * PAGE, is_there) < 0)
			continue;
		for (size_t i = 0; i < pages; i++)
			if (is_there[i] & 1)
				memcpy(to + at + i * PAGE, from + at + i * PAGE, PAGE);
	}
}

/* The machine counts it as a block from now on, and no more as ours.  0: no memory. */
static uint64_t share(CUdeviceptr base, size_t bytes, unsigned gpu)
{
	CUdeviceptr aside = address_reserve(bytes, 0, 0);
	uint64_t block = 0;

	if (!aside)
		return 0;
	machine_release(gpu, bytes);
	if (block_create(gpu, bytes, &block) < 0 || !block_map(block, aside, bytes, PROT_READ | PROT_WRITE)) {
		if (block)
			block_drop(block);
		(void)machine_charge(gpu, bytes);
		munmap((void *)aside, bytes);
		return 0;
	}
	copy_touched((unsigned char *)aside, (unsigned char *)base, bytes);
	munmap((void *)aside, bytes);
	(void)block_map(block, base, bytes, PROT_READ | PROT_WRITE);
	address_set_block(base, block);
	return block;
}

SIM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	struct address_facts facts;
	CUcontext context;
	CUresult rc = context_current(&context);
	struct handle handle = { .magic = MAGIC, .pid = getpid() };
	CUdeviceptr base;
	size_t bytes;

	if (rc != CUDA_SUCCESS)
		return rc;
	(void)queue_wait(context, UINT64_MAX); /* nothing may write while the bytes move */
	pthread_mutex_lock(&lock);
	if (pHandle && address_range(dptr, &base, &bytes, &facts) && facts.kind == ADDRESS_DEVICE) {
		handle.block = facts.block ? facts.block : share(base, bytes, facts.gpu);
		handle.bytes = bytes;
		handle.gpu = facts.gpu;
		rc = handle.block ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		rc = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&lock);
	if (rc == CUDA_SUCCESS) {
		memset(pHandle, 0, sizeof(*pHandle));
		memcpy(pHandle, &handle, sizeof(handle));
	}
	return rc;
}

/* We have the block once; on failure no more. */
static struct opened *map_peer(CUcontext context, const struct handle *handle)
{
	struct address_facts facts = { ADDRESS_PEER, ADDRESS_READ | ADDRESS_WRITE, handle->gpu, handle->block, context };
	struct opened *fresh = malloc(sizeof(*fresh));
	CUdeviceptr at = fresh ? address_reserve(handle->bytes, 0, 0) : 0;

	if (at && block_map(handle->block, at, handle->bytes, PROT_READ | PROT_WRITE) && address_add(at, handle->bytes, facts) == 0) {
		*fresh = (struct opened){ { .base = handle->block, .bytes = 1 }, at, context, 0 };
		span_add(&opened, &fresh->span);
		return fresh;
	}
	if (at)
		munmap((void *)at, handle->bytes);
	free(fresh);
	block_drop(handle->block);
	return NULL;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	struct handle said;
	struct opened *found;
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	memcpy(&said, &handle, sizeof(said));
	if (!pdptr || Flags != LAZY_PEER_ACCESS || said.magic != MAGIC || !said.bytes || said.bytes % PAGE || said.gpu >= MACHINE_GPUS)
		return CUDA_ERROR_INVALID_VALUE;
	if (said.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	found = (struct opened *)span_at(&opened, said.block);
	if (found && found->context != context)
		rc = CUDA_ERROR_ALREADY_MAPPED;
	else if (!found && block_hold(said.block) < 0)
		rc = CUDA_ERROR_MAP_FAILED; /* it has been freed */
	else if (!found && !(found = map_peer(context, &said)))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (rc == CUDA_SUCCESS) {
		found->count++;
		*pdptr = found->address;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

SIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct address_facts facts;
	struct opened *found = NULL;
	CUcontext context;
	CUresult rc = context_current(&context);
	CUdeviceptr base;
	size_t bytes;

	if (rc != CUDA_SUCCESS)
		return rc;
	(void)queue_wait(context, UINT64_MAX);
	pthread_mutex_lock(&lock);
	if (address_range(dptr, &base, &bytes, &facts) && base == dptr && facts.kind == ADDRESS_PEER)
		found = (struct opened *)span_at(&opened, facts.block);
	if (found && --found->count == 0) {
		span_take(&opened, &found->span);
		free(found);
		address_remove(base, ADDRESS_PEER, NULL);
		munmap((void *)base, bytes);
		block_drop(facts.block);
	}
	pthread_mutex_unlock(&lock);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
