/* SPDX-License-Identifier: MIT */
/* After an exception each client has a process here that holds the client's descriptors: while they are open, the end of the
 * client's process does not take its address space and channels from under the warps that are still on the GPU.
 *
 * Reading a hostile process can block for ever (docs/decisions/029): each of these processes blocks alone. */
#include "sentinel.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438 /* on every architecture */
#endif

static const char spaces_name[] = "nvidia-uvm";

enum { PIPE_FD = 3, PIDFD_FD = 4, MOST_NUMBERS = 65536 };

int take_descriptor(int pidfd, int number)
{
	int taken = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);

	return taken < 0 ? -errno : taken;
}

/* The simulator's stand-ins are PID.space, PID.control and PID.events in a directory `uvm`. */
static bool is_named(const char *link, const char *name, bool is_simulated)
{
	const char *dot = strrchr(link, '.');

	if (!is_simulated)
		return strncmp(link, "/dev/", 5) == 0 && strncmp(link + 5, name, strlen(name)) == 0;
	if (!dot || !strstr(link, "/uvm/"))
		return false;
	if (strcmp(name, "nvidiactl") == 0)
		return strcmp(dot, ".control") == 0;
	return strcmp(name, "nvidia-uvm") == 0 ? strcmp(dot, ".space") == 0 : true;
}

/* In a mount namespace of their own, users give their files the names of devices. A file on a file system that a user serves could
 * keep us in close(2) for ever, so it is not taken, and that file system is not asked for the type. */
bool is_device(DIR *folder, const char *number, const char *name, const char *but, bool is_simulated)
{
	char link[PATH_MAX + 1];
	ssize_t size = readlinkat(dirfd(folder), number, link, PATH_MAX);
	struct statx found;

	if (size <= 0)
		return false;
	link[size] = '\0';
	if (!is_named(link, name, is_simulated) || (but && is_named(link, but, is_simulated)))
		return false;
	if (statx(dirfd(folder), number, AT_STATX_DONT_SYNC, STATX_TYPE, &found) != 0)
		return false;
	return is_simulated ? S_ISREG(found.stx_mode) || S_ISFIFO(found.stx_mode) : S_ISCHR(found.stx_mode);
}

/* Take what links to /dev/NAME..., but not what links to /dev/BUT... (NULL: all); returns how many, or -errno of the last failure if
 * there were none. */
static int take_all(pid_t pid, const char *name, const char *but, bool is_simulated)
{
	char path[64];
	int count = 0, looked_at = 0, rc = 0;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	if (!folder)
		return -errno;
	while (count < MPSD_SENTINEL_HELD && looked_at++ < MOST_NUMBERS && (entry = readdir(folder))) {
		if (!is_device(folder, entry->d_name, name, but, is_simulated))
			continue;
		rc = take_descriptor(PIDFD_FD, atoi(entry->d_name));
		count += rc >= 0;
	}
	closedir(folder);
	return count ? count : rc < 0 ? rc : 0;
}

/* The size of the mapping in which the PC lies; 0: none. */
static uint64_t mapping_bytes(pid_t pid, uint64_t pc)
{
	char path[64], line[PATH_MAX + 128];
	uint64_t begin, end, found = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = pc ? fopen(path, "re") : NULL;
	while (maps && !found && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2 && pc >= begin && pc < end)
			found = end - begin;
	if (maps)
		fclose(maps);
	return found;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The address spaces come first: they get the lowest numbers, and are closed first at our end (docs/decisions/027). */
static _Noreturn void hold(pid_t watcher, pid_t pid, uint64_t pc, bool is_simulated, bool holds)
{
	struct mpsd_sentinel_report report = { .version = MPSD_SENTINEL_VERSION, .kind = MPSD_SENTINEL_HOLDS, .pid = (uint32_t)pid };
	int spaces = 0, rest = 0;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != watcher)
		_exit(2);
	if (holds) {
		spaces = take_all(pid, spaces_name, NULL, is_simulated);
		rest = take_all(pid, "nvidia", spaces_name, is_simulated);
	}
	report.status = spaces < 0 ? spaces : rest < 0 ? rest : 0;
	report.count = (uint32_t)((spaces > 0 ? spaces : 0) + (rest > 0 ? rest : 0));
	report.pc = pc;
	/* The pid could be another process's by now, were the first one not still alive. */
	report.mapping_bytes = mapping_bytes(pid, pc);
	report.is_culprit = report.mapping_bytes && syscall(SYS_pidfd_send_signal, PIDFD_FD, 0, NULL, 0) == 0;
	report.time_ns = now_ns();
	(void)!write(PIPE_FD, &report, sizeof(report));
	if (!holds)
		_exit(0);
	close(PIPE_FD);
	for (;;)
		pause();
}

int holder_start(pid_t pid, int pidfd, uint64_t pc, bool is_simulated, bool holds, int pipe)
{
	pid_t watcher = getpid(), child = fork();
	int high;

	if (child)
		return child < 0 ? -errno : 0;
	high = fcntl(pidfd, F_DUPFD, PIDFD_FD + 1); /* neither dup2 below may hit what the other one needs */
	if (high < 0 || (pipe != PIPE_FD && dup2(pipe, PIPE_FD) < 0) || dup2(high, PIDFD_FD) < 0)
		_exit(2);
	syscall(SYS_close_range, PIDFD_FD + 1, ~0U, 0);
	hold(watcher, pid, pc, is_simulated, holds);
}
