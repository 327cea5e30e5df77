/* SPDX-License-Identifier: MIT */
/* Read which process a pid is: its stat, cgroups, executable, root directory, pid namespaces, and a keeper's socket. */
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

#ifndef NS_GET_ID
#define NS_GET_ID _IOR(NSIO, 13, __u64) /* linux/nsfs.h since 6.18 */
#endif
#define PF_EXITING 0x4 /* linux/sched.h */

/* The stat of the thread alone: for /proc/PID/stat the kernel visits all threads of the process, which may have very many. */
static ssize_t read_thread(uint32_t pid, char *out)
{
	char name[32];

	snprintf(name, sizeof(name), "task/%u/stat", pid);
	return read_file(pid, name, out, MPSD_INSPECTOR_STAT_BYTES);
}

bool stat_is_over(const char *stat, long *threads)
{
	const char *fields = strrchr(stat, ')'); /* the name before it may contain some */
	unsigned int flags;
	char state;

	*threads = 0;
	return fields &&
	       sscanf(fields, ") %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld", &state, &flags,
		      threads) == 3 &&
	       (state == 'Z' || state == 'X' || flags & PF_EXITING);
}

/* If the first thread ended before the others, only the stat of the whole process has its exit code: 40 to 67 ns a thread. */
int stat_read(const struct question *question, struct reply *out)
{
	ssize_t size = read_thread(question->head.pid, out->payload);
	long threads;

	if (size >= 0) {
		out->payload[size] = '\0';
		if (stat_is_over(out->payload, &threads) && threads <= MPSD_INSPECTOR_FEW_THREADS)
			size = read_file(question->head.pid, "stat", out->payload, MPSD_INSPECTOR_STAT_BYTES);
	}
	if (size < 0)
		return (int)size;
	out->size = (size_t)size;
	return 0;
}

/* Another thread may become the first one as it executes a program, and then show its own cgroups: so this reads them twice, and
 * stat in between, for mpsd to see whether the first thread had ended. */
int cgroup_read(const struct question *question, struct reply *out)
{
	static char again[MPSD_INSPECTOR_CGROUP_BYTES];
	ssize_t size = read_file(question->head.pid, "cgroup", out->payload, sizeof(again));
	ssize_t stat_size, again_size;

	if (size < 0)
		return (int)size;
	if ((size_t)size == sizeof(again))
		return -E2BIG;
	stat_size = read_thread(question->head.pid, out->payload + size + 1);
	if (stat_size < 0)
		return (int)stat_size;
	again_size = read_file(question->head.pid, "cgroup", again, sizeof(again));
	if (again_size < 0)
		return (int)again_size;
	if (again_size != size || memcmp(again, out->payload, (size_t)size) != 0)
		return -EAGAIN;
	out->payload[size] = '\0';
	out->size = (size_t)(size + 1 + stat_size);
	return 0;
}

/* A file system that a user serves is not asked: it need not answer, and a wait for it looks like any sleep. */
int file_read(const struct question *question, struct reply *out)
{
	struct mpsd_inspector_file file = { 0, 0 };
	struct statx found;
	char path[64];
	ssize_t size;

	if (!is_word(question, "exe", 3) && !is_word(question, "root", 4) && !is_word(question, "fd/3", 4))
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

/* The kernel gives an inode out again, and an id never.  0, or -errno. */
static int number_of(int space, uint64_t *number)
{
	struct stat found;

	if (ioctl(space, NS_GET_ID, number) == 0)
		return 0;
	if (fstat(space, &found) != 0)
		return -errno;
	*number = found.st_ino;
	return 0;
}

/* Append the number of the namespace.  0, or -errno. */
static int append_space(int space, struct reply *out, uint64_t *number)
{
	int rc = number_of(space, number);

	if (rc != 0)
		return rc;
	memcpy(out->payload + out->size, number, sizeof(*number));
	out->size += sizeof(*number);
	out->head.count++;
	return 0;
}

/* Any user can hold the directory of this process, and then a later look-up waits: it is done once. */
static int own_number(uint64_t *number)
{
	static uint64_t own; /* 0: not known */
	int space, rc = 0;

	if (!own) {
		space = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
		if (space < 0)
			return -errno;
		rc = number_of(space, &own);
		close(space);
	}
	*number = own;
	return rc;
}

void spaces_prepare(void)
{
	uint64_t number;

	own_number(&number);
}

int spaces_read(const struct question *question, struct reply *out)
{
	uint64_t own = 0, number = 0;
	char path[64];
	int space, above, rc;

	snprintf(path, sizeof(path), "/proc/%u/ns/pid", question->head.pid);
	if ((rc = own_number(&own)) != 0)
		return rc;
	space = open(path, O_RDONLY | O_CLOEXEC);
	if (space < 0)
		return -errno;
	rc = append_space(space, out, &number);
	while (rc == 0 && number != own) {
		above = out->head.count < MPSD_INSPECTOR_SPACES_MOST ? ioctl(space, NS_GET_PARENT) : -1;
		close(space);
		space = above;
		rc = space < 0 ? -EXDEV : append_space(space, out, &number);
	}
	if (space >= 0)
		close(space);
	return rc;
}
