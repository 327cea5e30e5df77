/* What the GPUs' memory is used for, and the blocks that several processes can map.
 *
 * A block is a sparse file, memory/ID.  Every descriptor of it that was handed out shares one
 * open file with a read lock on it; when the last is closed, wherever it was, the block is free.
 */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void block_path(uint64_t id, char *path, size_t size)
{
	snprintf(path, size, "%s/memory/%llu", machine_directory(), (unsigned long long)id);
}

static bool block_is_held(uint64_t id)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	char path[320];
	bool held;
	int fd;

	block_path(id, path, sizeof(path));
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	held = fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
	close(fd);
	return held;
}

void machine_reap_blocks(void)
{
	struct machine_state *state = machine_open();
	char path[320];

	for (unsigned i = 0; i < MACHINE_BLOCKS; i++) {
		if (!state->blocks[i].id || block_is_held(state->blocks[i].id))
			continue;
		block_path(state->blocks[i].id, path, sizeof(path));
		(void)unlink(path);
		state->blocks[i] = (struct machine_block){ 0 };
	}
}

uint64_t machine_used_bytes(unsigned gpu)
{
	struct machine_state *state = machine_open();
	uint64_t used = 0;

	for (unsigned i = 0; i < MACHINE_PROCESSES; i++)
		if (state->processes[i].kind != MACHINE_FREE)
			used += state->processes[i].used_bytes[gpu];
	for (unsigned i = 0; i < MACHINE_BLOCKS; i++)
		if (state->blocks[i].id && state->blocks[i].gpu == gpu)
			used += state->blocks[i].bytes;
	return used;
}

/* The dead are looked for only when memory seems to be short: it takes a system call each. */
static bool fits(unsigned gpu, uint64_t bytes)
{
	uint64_t total = machine_open()->gpus[gpu].memory_bytes - ((uint64_t)MACHINE_RESERVED_MIB << 20);
	uint64_t used = machine_used_bytes(gpu);

	if (used <= total && bytes <= total - used)
		return true;
	machine_reap();
	used = machine_used_bytes(gpu);
	return used <= total && bytes <= total - used;
}

bool machine_charge(unsigned gpu, uint64_t bytes)
{
	struct machine_process *self = machine_self();
	bool fit;

	if (!self)
		return false;
	machine_lock();
	fit = fits(gpu, bytes);
	if (fit)
		self->used_bytes[gpu] += bytes;
	machine_unlock();
	return fit;
}

void machine_release(unsigned gpu, uint64_t bytes)
{
	struct machine_process *self = machine_self();

	if (!self)
		return;
	machine_lock();
	self->used_bytes[gpu] -= bytes < self->used_bytes[gpu] ? bytes : self->used_bytes[gpu];
	machine_unlock();
}

static int block_open(uint64_t id, uint64_t bytes, uint64_t *inode)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1 };
	struct stat info;
	char path[320];
	int fd, rc;

	block_path(id, path, sizeof(path));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0666);
	if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0 && fstat(fd, &info) == 0) {
		*inode = info.st_ino;
		return fd;
	}
	rc = -errno;
	(void)unlink(path);
	close(fd);
	return rc;
}

int machine_block_create(unsigned gpu, uint64_t bytes)
{
	struct machine_state *state = machine_open();
	struct machine_block *block = NULL;
	uint64_t inode = 0;
	int fd = -ENOMEM;

	if (!fits(gpu, bytes))
		return -ENOMEM;
	for (unsigned i = 0; i < MACHINE_BLOCKS && !block; i++)
		if (!state->blocks[i].id)
			block = &state->blocks[i];
	if (!block)
		return -ENOMEM;
	fd = block_open(state->next_block, bytes, &inode);
	if (fd >= 0)
		*block = (struct machine_block){ .id = state->next_block++, .inode = inode, .bytes = bytes, .gpu = gpu };
	return fd;
}

int machine_block_find(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *id)
{
	struct machine_state *state = machine_open();
	struct stat info;

	if (fstat(fd, &info) < 0)
		return -errno;
	for (unsigned i = 0; i < MACHINE_BLOCKS; i++) {
		struct machine_block *block = &state->blocks[i];

		if (block->id && block->inode == info.st_ino && block->bytes == (uint64_t)info.st_size) {
			*gpu = block->gpu;
			*bytes = block->bytes;
			*id = block->id;
			return 0;
		}
	}
	return -ENOENT;
}
