/* SPDX-License-Identifier: MIT */
/*
 * mpsd_cached.h: find files by names that the kernel has cached. That does not wait for the lock of the directory, which any
 * user who may list it can hold for ever (docs/decisions/029). Used by mpsd/host/cached_names.py.
 */
#ifndef MPSD_CACHED_H
#define MPSD_CACHED_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/*
 * Open a file below `directory`, with openat(2)'s `flags`. Returns its descriptor, close-on-exec; -EAGAIN if the kernel has not
 * cached the name; or another -errno: -EINVAL or -ENOSYS before Linux 5.12. Any thread; does not wait for `directory`.
 */
static int mpsd_cached_open(int directory, const char *name, int flags);

/*
 * Find the entries of `directory` with numbers from 1 on and below `end` as names, and stop at `most`. Returns how many it
 * wrote to `found`, or -errno as above. Any thread; does not wait for `directory`, but takes 2 s for a million numbers.
 */
static int mpsd_cached_numbers(int directory, uint32_t end, uint32_t *found, int most);

#ifndef MPSD_CDEF
#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20 /* headers before Linux 5.12 */
#endif
enum { MPSD_CACHED_TRIES = 4 }; /* a mount or a rename at the same moment, anywhere, gives EAGAIN too */

static int mpsd_cached_open_once(int directory, const char *name, int flags)
{
	struct open_how how = { .flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_CACHED };
	long fd = syscall(SYS_openat2, directory, name, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

static int mpsd_cached_open(int directory, const char *name, int flags)
{
	int fd = -EAGAIN;

	for (int tries = 0; fd == -EAGAIN && tries < MPSD_CACHED_TRIES; tries++)
		fd = mpsd_cached_open_once(directory, name, flags);
	return fd;
}

static int mpsd_cached_numbers(int directory, uint32_t end, uint32_t *found, int most)
{
	int count = 0;

	for (uint32_t number = 1; number < end && count < most; number++) {
		char name[16];
		int fd;

		snprintf(name, sizeof(name), "%u", number);
		fd = mpsd_cached_open_once(directory, name, O_PATH);
		if (fd == -EINVAL || fd == -ENOSYS)
			return fd;
		if (fd < 0)
			continue;
		close(fd);
		found[count++] = number;
	}
	return count;
}
#endif

#endif
