/* SPDX-License-Identifier: MIT */
/* Read which process a pid is: its stat, its executable, its root directory, its pid namespaces. */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int stat_read(const struct question *question, struct reply *out)
{
	ssize_t size = read_file(question->head.pid, "stat", out->payload, MPSD_INSPECTOR_STAT_BYTES);

	if (size < 0)
		return (int)size;
	out->size = (size_t)size;
	return 0;
}

/* A file system that a user serves is not asked: it need not answer, and a wait for it looks like any sleep. */
int file_read(const struct question *question, struct reply *out)
{
	struct mpsd_inspector_file file = { 0, 0 };
	struct statx found;
	char path[64];
	ssize_t size;

	if (!is_word(question, "exe", 3) && !is_word(question, "root", 4))
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/%u/%.4s", question->head.pid, question->words);
	size = readlink(path, out->payload + sizeof(file), PATH_MAX);
	if (size < 0)
		return -errno;
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO, &found) == 0)
		file = (struct mpsd_inspector_file){ makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino };
	memcpy(out->payload, &file, sizeof(file));
	out->size = sizeof(file) + (size_t)size;
	return 0;
}

/* Append the inode of the namespace.  0, or -errno. */
static int append_space(int space, struct reply *out, uint64_t *inode)
{
	struct stat found;

	if (fstat(space, &found) != 0)
		return -errno;
	*inode = found.st_ino;
	memcpy(out->payload + out->size, inode, sizeof(*inode));
	out->size += sizeof(*inode);
	out->head.count++;
	return 0;
}

int spaces_read(const struct question *question, struct reply *out)
{
	struct stat own;
	uint64_t inode = 0;
	char path[64];
	int space, above, rc;

	snprintf(path, sizeof(path), "/proc/%u/ns/pid", question->head.pid);
	if (stat("/proc/self/ns/pid", &own) != 0)
		return -errno;
	space = open(path, O_RDONLY | O_CLOEXEC);
	if (space < 0)
		return -errno;
	rc = append_space(space, out, &inode);
	while (rc == 0 && inode != own.st_ino) {
		above = out->head.count < MPSD_INSPECTOR_SPACES_MOST ? ioctl(space, NS_GET_PARENT) : -1;
		close(space);
		space = above;
		rc = space < 0 ? -EXDEV : append_space(space, out, &inode);
	}
	if (space >= 0)
		close(space);
	return rc;
}
