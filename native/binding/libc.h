/* SPDX-License-Identifier: MIT */
/*
 * libc.h: calls that Python's standard library lacks. The compiler compares each declaration with libc's own.
 */
#ifndef MPSD_LIBC_H
#define MPSD_LIBC_H

#ifdef MPSD_CDEF /* what Python sees: `cc -E -P` leaves these declarations */

static const int AT_EMPTY_PATH, AT_FDCWD, AT_STATX_DONT_SYNC, STATX_TYPE;
struct statx {
	uint16_t stx_mode;
	uint32_t stx_rdev_major, stx_rdev_minor;
	...;
};
int statx(int directory, const char *path, int flags, unsigned int wanted, struct statx *found);

struct file_handle;
int name_to_handle_at(int directory, const char *path, struct file_handle *found, int *mount, int flags);

static const int TMPFS_MAGIC;
struct statfs {
	long f_type;
	...;
};
int fstatfs(int file, struct statfs *found);

static const int FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE;
int fallocate(int file, int mode, int64_t offset, int64_t length);

static const int FAN_CLOEXEC, FAN_NONBLOCK, FAN_REPORT_PIDFD, FAN_MARK_ADD, FAN_CLOSE_WRITE, FAN_EVENT_ON_CHILD;
static const int FAN_EVENT_INFO_TYPE_FID, FAN_EVENT_INFO_TYPE_DFID_NAME, FAN_EVENT_INFO_TYPE_PIDFD;
int fanotify_init(unsigned int flags, unsigned int flags_of_files);
int fanotify_mark(int group, unsigned int flags, uint64_t events, int directory, const char *path);

static const int IN_CLOSE_WRITE, IN_CREATE, IN_MODIFY, IN_MOVED_TO;
int inotify_init1(int flags);
int inotify_add_watch(int group, const char *path, uint32_t events);

static const int PR_GET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NAME, PR_SET_PDEATHSIG;
int prctl(int option, unsigned long, unsigned long, unsigned long, unsigned long);

static const int CLONE_FILES;
int unshare(int flags);

void *memmem(const void *data, size_t bytes, const void *part, size_t part_bytes);

static const int SOL_SOCKET, SO_PEERGROUPS;
int getsockopt(int connection, int level, int option, void *value, uint32_t *bytes);

#else

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sched.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#endif
#endif
