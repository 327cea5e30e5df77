/* Tickets of an exported block: a memory file with the block's id, and a lock that the kernel lists until its last close. */
#include "machine.h"
#include "tickets.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define OPEN_FILE " OFDLCK "

/* Its text is the block's id, and stays so. */
int ticket_make(uint64_t id, struct stat *info)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1 };
	int fd = memfd_create("mpsd-sim-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

	if (fd < 0)
		return -errno;
	if (dprintf(fd, "%llu\n", (unsigned long long)id) > 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0 && fstat(fd, info) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

static int compare(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return a < b ? -1 : a > b;
}

bool ticket_is_live(const struct tickets *live, uint64_t inode)
{
	return live->is_unknown || (live->count && bsearch(&inode, live->inodes, live->count, sizeof(inode), compare));
}

static void remember(struct tickets *live, uint64_t inode)
{
	if (live->count == live->room) {
		size_t room = live->room ? live->room * 2 : 256;
		uint64_t *grown = realloc(live->inodes, room * sizeof(*grown));

		live->is_unknown = live->is_unknown || !grown;
		if (!grown)
			return;
		live->inodes = grown;
		live->room = room;
	}
	live->inodes[live->count++] = inode;
}

/* Read all of /proc/locks; NULL if the kernel does not provide it. The kernel returns it in pieces, and a lock that is released
 * between two of them can hide another at the boundary. So each pass uses other boundaries, and a ticket counts as gone only if
 * no pass has seen it. */
static char *read_locks(unsigned look)
{
	static const size_t pieces[] = { 4096, 3300, 2700, 2200, 3900 };
	int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
	size_t room = 1 << 16, used = 0;
	char *text = fd < 0 ? NULL : malloc(room);
	ssize_t got = 1;

	while (text && got > 0) {
		size_t piece = pieces[look % TICKET_LOOKS];

		if (room - used <= piece) {
			char *grown = realloc(text, room * 2);

			if (!grown)
				free(text);
			text = grown;
			room *= 2;
			if (!grown)
				break;
		}
		got = read(fd, text + used, piece);
		used += got > 0 ? (size_t)got : 0;
	}
	if (fd >= 0)
		close(fd);
	if (text)
		text[used] = '\0';
	return text;
}

/* Behind the kind of a lock: " ADVISORY  READ -1 00:01:1654666 0 0"; of other devices than that of memory files: false. */
static bool parse(const char *at, uint64_t *inode)
{
	unsigned long major_number, minor_number;
	char *end;

	for (unsigned word = 0; word < 3; word++) {
		at += strspn(at, " ");
		at += strcspn(at, " \n");
	}
	major_number = strtoul(at, &end, 16);
	if (*end != ':')
		return false;
	minor_number = strtoul(end + 1, &end, 16);
	if (*end != ':')
		return false;
	*inode = strtoull(end + 1, NULL, 10);
	return makedev((unsigned)major_number, (unsigned)minor_number) == machine_open()->ticket_device;
}

void tickets_look(struct tickets *live, unsigned number)
{
	char *text = read_locks(number);
	uint64_t inode;

	live->is_unknown = live->is_unknown || !text;
	for (const char *at = text; at && (at = strstr(at, OPEN_FILE)); at += strlen(OPEN_FILE))
		if (parse(at + strlen(OPEN_FILE), &inode))
			remember(live, inode);
	free(text);
	if (live->count)
		qsort(live->inodes, live->count, sizeof(*live->inodes), compare);
}
