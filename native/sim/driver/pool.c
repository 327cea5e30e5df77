/* Stream-ordered memory: what is freed stays with its pool, mapped as before, and serves again once the stream has come so far. */
#include "driver.h"
#include "spans.h"

#include <stdlib.h>

enum chunk_state { CHUNK_GIVEN, CHUNK_LEAVING, CHUNK_FREE };
enum { BINS = 256, UNIT = 4096 };

struct chunk {
	struct span span; /* first */
	enum chunk_state state;
	CUmemoryPool pool;
	struct chunk *next; /* the next free chunk of the same bin */
};

struct CUmemPoolHandle_st { /* the default pool of a device, and the only one */
	uint64_t threshold, reserved, used, most_reserved, most_used;
	struct chunk *bins[BINS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all below; addresses and counts are locked under it */
static struct CUmemPoolHandle_st pools[DRIVER_DEVICES];
static struct spans chunks;

static struct chunk **bin_of(CUmemoryPool pool, size_t bytes)
{
	return &pool->bins[bytes / UNIT % BINS];
}

static uint64_t larger(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/* All of these: the caller holds the lock. */
static struct chunk *take_free(CUmemoryPool pool, size_t bytes)
{
	for (struct chunk **at = bin_of(pool, bytes); *at; at = &(*at)->next) {
		struct chunk *chunk = *at;

		if (chunk->span.bytes < bytes || chunk->span.bytes - bytes >= UNIT)
			continue;
		*at = chunk->next;
		return chunk;
	}
	return NULL;
}

static CUresult grow(CUcontext context, CUmemoryPool pool, size_t bytes, struct chunk **out)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	CUdeviceptr base;
	CUresult rc = chunk ? memory_new(context, bytes, ADDRESS_POOL, &base) : CUDA_ERROR_OUT_OF_MEMORY;
	size_t whole;

	if (rc != CUDA_SUCCESS) {
		free(chunk);
		return rc;
	}
	(void)address_range(base, &base, &whole, NULL);
	*chunk = (struct chunk){ .span = { .base = base, .bytes = whole }, .pool = pool };
	span_add(&chunks, &chunk->span);
	pool->reserved += whole;
	pool->most_reserved = larger(pool->most_reserved, pool->reserved);
	*out = chunk;
	return CUDA_SUCCESS;
}

static void release(struct chunk *chunk)
{
	span_take(&chunks, &chunk->span);
	(void)memory_free(chunk->span.base, ADDRESS_POOL);
	chunk->pool->reserved -= chunk->span.bytes;
	free(chunk);
}

static void give_back(struct chunk *chunk)
{
	struct chunk **bin = bin_of(chunk->pool, chunk->span.bytes);

	chunk->state = CHUNK_FREE;
	chunk->next = *bin;
	*bin = chunk;
}

static struct chunk *begin_free(CUdeviceptr base)
{
	struct chunk *chunk = (struct chunk *)span_at(&chunks, base);

	if (!chunk || chunk->span.base != base || chunk->state != CHUNK_GIVEN)
		return NULL;
	chunk->state = CHUNK_LEAVING;
	chunk->pool->used -= chunk->span.bytes;
	return chunk;
}

static size_t unit_of(size_t bytes)
{
	size_t unit = bytes < 1 << 20 ? UNIT : 2 << 20; /* as memory.c rounds */

	return (bytes + unit - 1) / unit * unit;
}

bool pool_free(CUdeviceptr base)
{
	struct chunk *chunk;

	pthread_mutex_lock(&lock);
	chunk = begin_free(base);
	if (chunk)
		give_back(chunk);
	pthread_mutex_unlock(&lock);
	return chunk;
}

CUmemoryPool pool_of(CUdeviceptr inside)
{
	struct chunk *chunk;

	pthread_mutex_lock(&lock);
	chunk = (struct chunk *)span_at(&chunks, inside);
	pthread_mutex_unlock(&lock);
	return chunk ? chunk->pool : NULL;
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	struct chunk *chunk = NULL;
	CUcontext context;
	CUresult rc = context_current(&context);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!dptr || !bytesize || bytesize > 1ull << 46 || !pool)
		return CUDA_ERROR_INVALID_VALUE;
	rc = stream_must_not_capture(hStream); /* memory nodes are not modelled */
	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&lock);
	chunk = take_free(pool, unit_of(bytesize));
	if (!chunk)
		rc = grow(context, pool, unit_of(bytesize), &chunk);
	if (rc == CUDA_SUCCESS) {
		chunk->state = CHUNK_GIVEN;
		pool->used += chunk->span.bytes;
		pool->most_used = larger(pool->most_used, pool->used);
		*dptr = chunk->span.base;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}
SIM_PER_THREAD(cuMemAllocFromPoolAsync, _ptsz);

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	CUcontext context;
	CUresult rc = context_current(&context);
	CUmemoryPool pool;

	if (rc == CUDA_SUCCESS)
		rc = cuDeviceGetDefaultMemPool(&pool, context->device);
	return rc == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream) : rc;
}
SIM_PER_THREAD(cuMemAllocAsync, _ptsz);

static void run_free(CUcontext context, struct work *work)
{
	(void)context;
	pthread_mutex_lock(&lock);
	give_back(work->call.data);
	pthread_mutex_unlock(&lock);
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct work work = { .run = run_free };
	CUcontext context;
	CUresult rc = context_current(&context);
	struct chunk *chunk;

	if (rc != CUDA_SUCCESS)
		return rc;
	rc = stream_must_not_capture(hStream);
	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&lock);
	chunk = begin_free(dptr);
	pthread_mutex_unlock(&lock);
	work.call.data = chunk;
	return chunk ? queue_do(&work, hStream, false) : CUDA_ERROR_INVALID_VALUE;
}
SIM_PER_THREAD(cuMemFreeAsync, _ptsz);

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	if (driver_check() != CUDA_SUCCESS)
		return driver_check();
	if (!pool_out)
		return CUDA_ERROR_INVALID_VALUE;
	if (dev < 0 || (unsigned)dev >= driver.view.count)
		return CUDA_ERROR_INVALID_DEVICE;
	*pool_out = &pools[dev];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	return cuDeviceGetDefaultMemPool(pool, dev);
}

SIM_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return cuDeviceGetDefaultMemPool(pool_out, location->id);
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < BINS; i++)
		while (pool->bins[i] && pool->reserved > minBytesToKeep) {
			struct chunk *chunk = pool->bins[i];

			pool->bins[i] = chunk->next;
			release(chunk);
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* The threshold is kept, and without effect: nothing is given back before it is asked for. */
static uint64_t *attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->most_reserved;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->most_used;
	default:
		return NULL;
	}
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	uint64_t *found = pool ? attribute_of(pool, attr) : NULL;

	if (!value || !found)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	*(cuuint64_t *)value = *found;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	uint64_t *found = pool ? attribute_of(pool, attr) : NULL;

	if (!value || !found || attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
		return CUDA_ERROR_INVALID_VALUE;
	if (attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE; /* a high water mark can only be set back */
	pthread_mutex_lock(&lock);
	*found = *(cuuint64_t *)value;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
