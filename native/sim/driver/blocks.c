/* The blocks of the machine's memory that this process uses. Only the first and the last use of a block are reported to the
 * machine. */
#include "driver.h"
#include "spans.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct use {
	struct span span; /* first; base: the block's id */
	unsigned count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `uses`; the machine's lock may be taken under it */
static struct spans uses;

/* Under both locks; the machine knows by then that we have it. */
static void remember(struct use *fresh, uint64_t block)
{
	struct use *use = (struct use *)span_at(&uses, block);

	if (use) {
		use->count++;
		free(fresh);
		return;
	}
	*fresh = (struct use){ .span = { .base = block, .bytes = 1 }, .count = 1 };
	span_add(&uses, &fresh->span);
}

int block_create(unsigned gpu, uint64_t bytes, uint64_t *block)
{
	struct use *fresh = malloc(sizeof(*fresh));
	int rc = -1;

	pthread_mutex_lock(&lock);
	machine_lock();
	if (fresh)
		rc = machine_block_create(gpu, bytes, block);
	if (rc == 0)
		remember(fresh, *block);
	machine_unlock();
	pthread_mutex_unlock(&lock);
	if (rc < 0)
		free(fresh);
	return rc;
}

int block_import(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *block)
{
	struct use *fresh = malloc(sizeof(*fresh));
	int rc = -1;

	pthread_mutex_lock(&lock);
	machine_lock();
	if (fresh)
		rc = machine_block_find(fd, gpu, bytes, block);
	if (rc == 0)
		rc = machine_block_hold(*block);
	if (rc == 0)
		remember(fresh, *block);
	machine_unlock();
	pthread_mutex_unlock(&lock);
	if (rc < 0)
		free(fresh);
	return rc;
}

int block_hold(uint64_t block)
{
	struct use *fresh = malloc(sizeof(*fresh));
	int rc = -1;

	pthread_mutex_lock(&lock);
	machine_lock();
	if (fresh)
		rc = machine_block_hold(block);
	if (rc == 0)
		remember(fresh, block);
	machine_unlock();
	pthread_mutex_unlock(&lock);
	if (rc < 0)
		free(fresh);
	return rc;
}

void block_drop(uint64_t block)
{
	struct use *use;

	pthread_mutex_lock(&lock);
	use = (struct use *)span_at(&uses, block);
	if (use && --use->count == 0) {
		span_take(&uses, &use->span);
		free(use);
		machine_lock();
		machine_block_drop(block);
		machine_unlock();
	}
	pthread_mutex_unlock(&lock);
}

int block_export(uint64_t block)
{
	int fd;

	machine_lock();
	fd = machine_block_export(block);
	machine_unlock();
	return fd;
}

bool block_map(uint64_t block, CUdeviceptr at, size_t bytes, int protection)
{
	int fd = machine_block_open(block);
	void *got = MAP_FAILED;
	struct stat info;

	if (fd < 0)
		return false;
	if (fstat(fd, &info) == 0 && info.st_size >= 0 && (size_t)info.st_size >= bytes)
		got = mmap((void *)at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
	close(fd);
	return got != MAP_FAILED;
}
