/* Memory that several processes can map: sparse files, memory/ID.
 *
 * A block lives as long as a living process has it, by handle or mapping, which is a bit here; or as long as there is a
 * descriptor that was exported.  Each of those is an open file with a read lock on it: when its last duplicate is closed,
 * wherever that was, the lock has gone.  So a process needs no descriptor for the memory that it merely uses.
 */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void block_path(uint64_t id, char *path, size_t size)
{
	snprintf(path, size, "%s/memory/%llu", machine_directory(), (unsigned long long)id);
}

static struct machine_block *block_of(uint64_t id)
{
	struct machine_block *block = &machine_open()->blocks[id % MACHINE_BLOCKS];

	return id && block->id == id ? block : NULL;
}

int machine_block_open(uint64_t id)
{
	char path[320];
	int fd;

	block_path(id, path, sizeof(path));
	fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static bool is_locked(uint64_t id)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	int fd = machine_block_open(id);
	bool locked;

	if (fd < 0)
		return false;
	locked = fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
	close(fd);
	return locked;
}

static void free_slot(struct machine_block *block)
{
	struct machine_state *state = machine_open();
	uint32_t number = (uint32_t)(block - state->blocks) + 1;

	*block = (struct machine_block){ .next_free = state->first_free_block };
	state->first_free_block = number;
}

static void free_unless_needed(struct machine_block *block)
{
	char path[320];

	if (block->holders || (block->is_exported && is_locked(block->id)))
		return;
	block_path(block->id, path, sizeof(path));
	(void)unlink(path);
	machine_open()->block_bytes[block->gpu] -= block->bytes;
	free_slot(block);
}

void machine_reap_blocks(void)
{
	struct machine_state *state = machine_open();

	for (unsigned i = 0; i < state->block_end; i++)
		if (state->blocks[i].id)
			free_unless_needed(&state->blocks[i]);
}

static bool leave(struct machine_block *block, unsigned slot)
{
	uint64_t bit = 1ull << slot % 64;

	if (!(block->held[slot / 64] & bit))
		return false;
	block->held[slot / 64] &= ~bit;
	block->holders--;
	return true;
}

void machine_blocks_leave(unsigned slot)
{
	struct machine_state *state = machine_open();

	for (unsigned i = 0; i < state->block_end; i++)
		if (state->blocks[i].id && leave(&state->blocks[i], slot))
			free_unless_needed(&state->blocks[i]);
}

int machine_block_hold(uint64_t id)
{
	struct machine_block *block = block_of(id);
	int slot = machine_own_slot();

	if (!block || slot < 0)
		return -ENOENT;
	if (!(block->held[slot / 64] & 1ull << slot % 64))
		block->holders++;
	block->held[slot / 64] |= 1ull << slot % 64;
	return 0;
}

void machine_block_drop(uint64_t id)
{
	struct machine_block *block = block_of(id);
	int slot = machine_own_slot();

	if (block && slot >= 0 && leave(block, (unsigned)slot))
		free_unless_needed(block);
}

static struct machine_block *take_slot(void)
{
	struct machine_state *state = machine_open();
	struct machine_block *block;

	if (state->first_free_block) {
		block = &state->blocks[state->first_free_block - 1];
		state->first_free_block = block->next_free;
		return block;
	}
	return state->block_end < MACHINE_BLOCKS ? &state->blocks[state->block_end++] : NULL;
}

/* Other users are on the machine too. */
static int make_file(uint64_t id, uint64_t bytes, uint64_t *inode)
{
	struct stat info;
	char path[320];
	int fd, rc = 0;

	block_path(id, path, sizeof(path));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0666);
	if (ftruncate(fd, (off_t)bytes) < 0 || fstat(fd, &info) < 0)
		rc = -errno;
	else
		*inode = info.st_ino;
	close(fd);
	if (rc < 0)
		(void)unlink(path);
	return rc;
}

int machine_block_create(unsigned gpu, uint64_t bytes, uint64_t *id)
{
	struct machine_state *state = machine_open();
	struct machine_block *block;
	uint64_t inode = 0, fresh;
	int rc;

	if (machine_own_slot() < 0 || !machine_fits(gpu, bytes))
		return -ENOMEM;
	block = take_slot();
	if (!block)
		return -ENOMEM;
	fresh = state->next_block++ * MACHINE_BLOCKS + (uint64_t)(block - state->blocks);
	rc = make_file(fresh, bytes, &inode);
	if (rc < 0) {
		free_slot(block);
		return rc;
	}
	*block = (struct machine_block){ .id = fresh, .inode = inode, .bytes = bytes, .gpu = gpu };
	state->block_bytes[gpu] += bytes;
	*id = fresh;
	return machine_block_hold(fresh);
}

int machine_block_export(uint64_t id)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1 };
	struct machine_block *block = block_of(id);
	int fd = block ? machine_block_open(id) : -ENOENT, rc;

	if (fd < 0)
		return fd;
	if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	block->is_exported = 1;
	return fd;
}

/* By its file's name, which says where to look; the inode says whether it is that file. */
int machine_block_find(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *id)
{
	struct machine_block *block;
	char path[64], link[320] = "", *name;
	struct stat info;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fstat(fd, &info) < 0 || readlink(path, link, sizeof(link) - 1) < 0)
		return -ENOENT;
	name = strrchr(link, '/');
	block = name ? block_of(strtoull(name + 1, NULL, 10)) : NULL;
	if (!block || block->inode != info.st_ino || block->bytes != (uint64_t)info.st_size)
		return -ENOENT;
	*gpu = block->gpu;
	*bytes = block->bytes;
	*id = block->id;
	return 0;
}
