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

enum { PIPE_FD = 3, PIDFD_FD = 4, PC_FD = 5, FREE_FD = 6, MOST_NUMBERS = 65536 };

struct mapping {
	uint64_t begin, end;
};

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

/* All mappings of the process. Their number is limited by vm.max_map_count. */
static int read_mappings(pid_t pid, struct mapping **mappings, size_t *count)
{
	char path[64], line[PATH_MAX + 128];
	size_t room = 0;
	FILE *maps;
	int rc = 0;

	*mappings = NULL;
	*count = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return -errno;
	while (!rc && fgets(line, sizeof(line), maps)) {
		struct mapping found;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64, &found.begin, &found.end) != 2)
			continue;
		if (*count == room) {
			struct mapping *more = realloc(*mappings, (room = 2 * room + 512) * sizeof(*more));

			rc = more ? 0 : -ENOMEM;
			*mappings = more ? more : *mappings;
		}
		if (!rc)
			(*mappings)[(*count)++] = found;
	}
	fclose(maps);
	return rc;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The address spaces come first: they get the lowest numbers, and are closed first at our end (docs/decisions/027). */
static _Noreturn void hold(pid_t watcher, pid_t pid, bool is_simulated, bool holds)
{
	struct mpsd_sentinel_report report = { .version = MPSD_SENTINEL_VERSION, .kind = MPSD_SENTINEL_HOLDS, .pid = (uint32_t)pid };
	int spaces = 0, rest = 0, rc;
	struct mapping *mappings;
	size_t count;
	bool is_alive;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != watcher)
		_exit(2);
	if (holds) {
		spaces = take_all(pid, spaces_name, NULL, is_simulated);
		rest = take_all(pid, "nvidia", spaces_name, is_simulated);
	}
	rc = read_mappings(pid, &mappings, &count);
	/* The pid could be another process's by now, were the first one not still alive. */
	is_alive = syscall(SYS_pidfd_send_signal, PIDFD_FD, 0, NULL, 0) == 0;
	if (read(PC_FD, &report.pc, sizeof(report.pc)) != sizeof(report.pc))
		_exit(2);
	report.status = spaces < 0 ? spaces : rest < 0 ? rest : rc == -ENOMEM ? rc : 0;
	report.count = (uint32_t)((spaces > 0 ? spaces : 0) + (rest > 0 ? rest : 0));
	for (size_t i = 0; report.pc && i < count && !report.mapping_bytes; i++)
		if (report.pc >= mappings[i].begin && report.pc < mappings[i].end)
			report.mapping_bytes = mappings[i].end - mappings[i].begin;
	free(mappings);
	report.is_culprit = report.mapping_bytes && is_alive;
	report.time_ns = now_ns();
	(void)!write(PIPE_FD, &report, sizeof(report));
	if (!holds)
		_exit(0);
	close(PIPE_FD);
	close(PC_FD);
	for (;;)
		pause();
}

int holder_start(pid_t pid, int pidfd, bool is_simulated, bool holds, int pipe)
{
	pid_t watcher = getpid(), child;
	int ends[2], high_pidfd, high_pc;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	child = fork();
	if (child) {
		int rc = child < 0 ? -errno : ends[1];

		close(ends[0]);
		if (child < 0)
			close(ends[1]);
		return rc;
	}
	high_pidfd = fcntl(pidfd, F_DUPFD, FREE_FD); /* no dup2 below may hit what a later one needs */
	high_pc = fcntl(ends[0], F_DUPFD, FREE_FD);
	if (high_pidfd < 0 || high_pc < 0 || (pipe != PIPE_FD && dup2(pipe, PIPE_FD) < 0) || dup2(high_pidfd, PIDFD_FD) < 0 ||
	    dup2(high_pc, PC_FD) < 0)
		_exit(2);
	syscall(SYS_close_range, FREE_FD, ~0U, 0);
	hold(watcher, pid, is_simulated, holds);
}
