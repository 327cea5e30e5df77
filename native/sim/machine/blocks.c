/* Memory that several processes can map: sparse files, memory/ID.
 *
 * A block lives while a living process uses it, by handle or mapping, which is a bit here; or while a ticket exists: an
 * exported block is a memory file that names the block and has a lock of its own. When the last duplicate of that file is
 * closed, in any process, the lock disappears from /proc/locks. So a process needs no descriptor for memory that it only
 * uses. */
#include "machine.h"
#include "tickets.h"

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
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

static unsigned count_tickets(const struct machine_block *block)
{
	unsigned count = 0;

	for (unsigned i = 0; i < MACHINE_TICKETS; i++)
		count += block->tickets[i] != 0;
	return count;
}

static bool are_live(const struct machine_block *block, const struct tickets *live)
{
	for (unsigned i = 0; i < MACHINE_TICKETS; i++)
		if (block->tickets[i] && !ticket_is_live(live, block->tickets[i]))
			return false;
	return true;
}

static void forget_tickets(struct machine_block *block, const struct tickets *live)
{
	for (unsigned i = 0; i < MACHINE_TICKETS; i++)
		if (block->tickets[i] && !ticket_is_live(live, block->tickets[i]))
			block->tickets[i] = 0;
}

static void free_slot(struct machine_block *block)
{
	struct machine_state *state = machine_open();
	uint32_t number = (uint32_t)(block - state->blocks) + 1;

	*block = (struct machine_block){ .next_free = state->first_free_block };
	state->first_free_block = number;
}

/* One that has tickets is left to machine_reap_blocks(), which looks at all of them at once. */
static void free_unless_needed(struct machine_block *block)
{
	char path[320];

	if (block->holders || count_tickets(block))
		return;
	block_path(block->id, path, sizeof(path));
	(void)unlink(path);
	machine_open()->block_bytes[block->gpu] -= block->bytes;
	free_slot(block);
}

void machine_reap_blocks(void)
{
	struct machine_state *state = machine_open();
	struct tickets live = { 0 };
	unsigned looks = 0;

	for (unsigned i = 0; i < state->block_end; i++) {
		struct machine_block *block = &state->blocks[i];

		if (!block->id || block->holders)
			continue;
		while (!are_live(block, &live) && looks < TICKET_LOOKS)
			tickets_look(&live, looks++);
		forget_tickets(block, &live);
		free_unless_needed(block);
	}
	free(live.inodes);
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
static int make_file(uint64_t id, uint64_t bytes)
{
	char path[320];
	int fd, rc = 0;

	block_path(id, path, sizeof(path));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0666);
	if (ftruncate(fd, (off_t)bytes) < 0)
		rc = -errno;
	close(fd);
	if (rc < 0)
		(void)unlink(path);
	return rc;
}

int machine_block_create(unsigned gpu, uint64_t bytes, uint64_t *id)
{
	struct machine_state *state = machine_open();
	struct machine_block *block;
	uint64_t fresh;
	int rc;

	if (machine_own_slot() < 0 || !machine_fits(gpu, bytes))
		return -ENOMEM;
	block = take_slot();
	if (!block)
		return -ENOMEM;
	fresh = state->next_block++ * MACHINE_BLOCKS + (uint64_t)(block - state->blocks);
	rc = make_file(fresh, bytes);
	if (rc < 0) {
		free_slot(block);
		return rc;
	}
	*block = (struct machine_block){ .id = fresh, .bytes = bytes, .gpu = gpu };
	state->block_bytes[gpu] += bytes;
	*id = fresh;
	return machine_block_hold(fresh);
}

static uint64_t *free_ticket(struct machine_block *block)
{
	struct tickets live = { 0 };

	if (count_tickets(block) == MACHINE_TICKETS) {
		for (unsigned looks = 0; looks < TICKET_LOOKS; looks++)
			tickets_look(&live, looks);
		forget_tickets(block, &live);
		free(live.inodes);
	}
	for (unsigned i = 0; i < MACHINE_TICKETS; i++)
		if (!block->tickets[i])
			return &block->tickets[i];
	return NULL;
}

int machine_block_export(uint64_t id)
{
	struct machine_block *block = block_of(id);
	uint64_t *ticket = block ? free_ticket(block) : NULL;
	struct stat info;
	int fd;

	if (!ticket)
		return block ? -EMFILE : -ENOENT;
	fd = ticket_make(id, &info);
	if (fd < 0)
		return fd;
	*ticket = info.st_ino;
	machine_open()->ticket_device = info.st_dev;
	return fd;
}

/* The text has the block's number; the inode shows whether the file is a ticket of that block. */
int machine_block_find(int fd, unsigned *gpu, uint64_t *bytes, uint64_t *id)
{
	struct machine_block *block;
	struct stat info;
	char text[32] = "";

	if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_dev != machine_open()->ticket_device ||
	    pread(fd, text, sizeof(text) - 1, 0) <= 0)
		return -ENOENT;
	block = block_of(strtoull(text, NULL, 10));
	for (unsigned i = 0; block && i < MACHINE_TICKETS; i++)
		if (block->tickets[i] == info.st_ino) {
			*gpu = block->gpu;
			*bytes = block->bytes;
			*id = block->id;
			return 0;
		}
	return -ENOENT;
}
