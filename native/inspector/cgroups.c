/* SPDX-License-Identifier: MIT */
/* Read cgroups of version 2. Their users hold the lock of a directory there for as long as they like, and no signal ends a wait
 * for it: so mpsd itself opens no file of a cgroup. */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FREEZE "/cgroup.freeze"
enum { PATH_BYTES = 2 * MPSD_INSPECTOR_CGROUP_BYTES, NAME_BYTES = 64 };

/* Find the path in the unified hierarchy, and end it by NUL.  NULL without one. */
static char *unified_path(char *text)
{
	char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");

	if (!line)
		return NULL;
	line = strchr(line, '/');
	line[strcspn(line, "\n")] = '\0'; /* the kernel allows none in a name */
	return line;
}

/* Whether the path leads out of mpsd's own cgroup namespace. */
static bool leads_out(const char *path)
{
	for (const char *at = path; (at = strstr(at, "/..")); at += 3)
		if (at[3] == '/' || at[3] == '\0')
			return true;
	return false;
}

/* An error that shows that the cgroup was removed, has no freezer or is closed to mpsd; any other, as for want of files, shows
 * nothing. */
static enum mpsd_inspector_frozen without_answer(int error)
{
	if (error == ENOENT || error == ENODEV || error == ENOTDIR || error == EACCES)
		return MPSD_INSPECTOR_IS_THAWED;
	return MPSD_INSPECTOR_MAY_BE_FROZEN;
}

/* Look at one cgroup, whose path has room for FREEZE after its length. */
static enum mpsd_inspector_frozen look_at(char *path, size_t length)
{
	enum mpsd_inspector_frozen found;
	char first = '0';
	int fd;

	memcpy(path + length, FREEZE, sizeof(FREEZE));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return without_answer(errno);
	if (read(fd, &first, 1) < 0)
		found = without_answer(errno);
	else
		found = first == '1' ? MPSD_INSPECTOR_IS_FROZEN : MPSD_INSPECTOR_IS_THAWED;
	close(fd);
	return found;
}

/* Write the name of a thread's file below /proc/PID, unless the thread is over or has gone.  1 if so, 0 otherwise. */
static int name_unless_over(uint32_t pid, const char *thread, void *out)
{
	static char stat[MPSD_INSPECTOR_STAT_BYTES + 1];
	char name[64];
	ssize_t size;
	long threads;

	snprintf(name, sizeof(name), "task/%.10s/stat", thread);
	size = read_file(pid, name, stat, sizeof(stat) - 1);
	if (size < 0)
		return 0;
	stat[size] = '\0';
	if (stat_is_over(stat, &threads))
		return 0;
	snprintf(out, NAME_BYTES, "task/%.10s/cgroup", thread);
	return 1;
}

/* Read the cgroups of a process. The kernel moves no thread that has ended: without the first one, they are those of another.
 * How many bytes, or -errno; -EAGAIN if it cannot be known. */
static ssize_t read_cgroups(uint32_t pid, char *out, size_t size)
{
	char name[NAME_BYTES] = "cgroup";
	ssize_t stat_size = read_file(pid, "stat", out, size - 1);
	long threads;
	int rc;

	if (stat_size >= 0) {
		out[stat_size] = '\0';
		if (stat_is_over(out, &threads)) {
			rc = for_threads(pid, MPSD_INSPECTOR_THREADS, name_unless_over, name);
			if (rc < 0)
				return rc;
			if (rc == 0)
				return threads < MPSD_INSPECTOR_THREADS ? -ESRCH : -EAGAIN;
		}
	}
	return read_file(pid, name, out, size);
}

/* Look at the process's cgroup and at those above it, below `root`. cgroup.events would not do: it says 0 as long as one process
 * of the cgroup waits for a file system of its user. */
static enum mpsd_inspector_frozen look_at_process(const char *root, uint32_t pid)
{
	static char text[MPSD_INSPECTOR_CGROUP_BYTES], path[PATH_BYTES];
	ssize_t size = read_cgroups(pid, text, sizeof(text));
	size_t root_size = strlen(root), length;
	enum mpsd_inspector_frozen found = MPSD_INSPECTOR_IS_THAWED;
	const char *below;

	if (size == -ENOENT || size == -ESRCH)
		return MPSD_INSPECTOR_IS_THAWED; /* it has ended */
	if (size < 0 || (size_t)size == sizeof(text))
		return MPSD_INSPECTOR_MAY_BE_FROZEN;
	text[size] = '\0';
	below = unified_path(text);
	if (!below || leads_out(below))
		return MPSD_INSPECTOR_IS_THAWED;
	length = root_size + strlen(below);
	if (length + sizeof(FREEZE) > sizeof(path))
		return MPSD_INSPECTOR_MAY_BE_FROZEN;
	snprintf(path, sizeof(path), "%s%s", root, below);
	while (length > root_size + 1 && found == MPSD_INSPECTOR_IS_THAWED) {
		found = look_at(path, length);
		while (path[--length] != '/')
			;
	}
	return found;
}

int frozen_read(const struct question *question, struct reply *out)
{
	if (!question->words_size || *question->words != '/' || strlen(question->words) >= MPSD_INSPECTOR_CGROUP_BYTES)
		return -EINVAL;
	for (uint32_t i = 0; i < question->head.pairs; i++) {
		enum mpsd_inspector_frozen found = look_at_process(question->words, question->pairs[i].pid);

		out->payload[out->size++] = (char)found;
	}
	return 0;
}

/* -- one cgroup, by its directory ------------------------------------------------------------------------------------------- */

/* Open the cgroup that the first word names; *rest: the next word, or NULL.  A descriptor, or -errno. */
static int open_cgroup(const struct question *question, const char **rest)
{
	const char *end = question->words + question->words_size;
	int fd;

	if (!question->words_size || *question->words != '/')
		return -EINVAL;
	*rest = question->words + strlen(question->words) + 1;
	if (*rest == end)
		*rest = NULL;
	fd = open(question->words, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Read the beginning of a file of the cgroup, and end it by NUL.  How many bytes, or -errno. */
static ssize_t read_there(int cgroup, const char *name, char *out, size_t size)
{
	int fd = openat(cgroup, name, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got = 1;

	if (fd < 0)
		return -errno;
	while (have < size - 1 && got > 0) {
		got = read(fd, out + have, size - 1 - have);
		if (got > 0)
			have += (size_t)got;
	}
	got = got < 0 ? -errno : (ssize_t)have;
	close(fd);
	out[have] = '\0';
	return got;
}

int freezer_read(const struct question *question, struct reply *out)
{
	struct mpsd_inspector_freezer found = { 0, 0, 0 };
	char text[1024] = "";
	const char *rest;
	struct stat status;
	ssize_t rc;
	int cgroup = open_cgroup(question, &rest);

	if (cgroup < 0)
		return cgroup;
	if (fstat(cgroup, &status) != 0)
		return -errno;
	if ((rc = read_there(cgroup, "cgroup.freeze", text, sizeof(text))) < 0)
		return (int)rc;
	found.is_asked = text[0] == '1';
	if ((rc = read_there(cgroup, "cgroup.events", text, sizeof(text))) < 0)
		return (int)rc;
	found.is_frozen = strstr(text, "frozen 1") != NULL;
	found.inode = status.st_ino;
	memcpy(out->payload, &found, sizeof(found));
	out->size = sizeof(found);
	return 0;
}

/* Open cgroup.freeze of the cgroup with the inode that the second word has.  A descriptor, or -errno. */
static int open_freeze(const struct question *question)
{
	const char *inode;
	struct stat status;
	int cgroup = open_cgroup(question, &inode), fd;

	if (cgroup < 0)
		return cgroup;
	if (!inode)
		return -EINVAL;
	if (fstat(cgroup, &status) != 0)
		return -errno;
	if (status.st_ino != strtoull(inode, NULL, 10))
		return -ESTALE; /* a later one with the same path */
	fd = openat(cgroup, "cgroup.freeze", O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* False with errno. */
static bool write_freeze(int fd, const char *value)
{
	lseek(fd, 0, SEEK_SET);
	return write(fd, value, 1) == 1;
}

/* No signal ends the wait of a write, which takes effect however late. So `freeze_undo` undoes one for which mpsd no longer
 * waits, and the timer's signal must not come before. */
int freeze_write(const struct question *question, struct reply *out)
{
	sigset_t timer;
	int fd = open_freeze(question);

	if (fd < 0)
		return fd;
	sigemptyset(&timer);
	sigaddset(&timer, SIGALRM);
	sigprocmask(SIG_BLOCK, &timer, NULL);
	if (!write_freeze(fd, "1"))
		return -errno;
	out->frozen = fd;
	return 0;
}

void freeze_undo(const struct reply *reply)
{
	if (reply->frozen >= 0)
		(void)write_freeze(reply->frozen, "0");
}

int thaw_write(const struct question *question, struct reply *out)
{
	char first = '0';
	int fd = open_freeze(question);

	if (fd < 0)
		return fd;
	if (read(fd, &first, 1) < 0)
		return -errno;
	out->payload[out->size++] = first == '1';
	return first != '1' || write_freeze(fd, "0") ? 0 : -errno;
}

/* Append the processes of a file cgroup.procs.  0, or -errno. */
static int append_processes(const char *path, struct reply *out)
{
	FILE *file = fopen(path, "re");
	int32_t pid;
	int rc = 0;

	if (!file)
		return -errno;
	while (rc == 0 && fscanf(file, "%d", &pid) == 1) {
		if (out->head.count == MPSD_INSPECTOR_CGROUP_PROCESSES) {
			rc = -E2BIG;
			break;
		}
		memcpy(out->payload + out->size, &pid, sizeof(pid));
		out->size += sizeof(pid);
		out->head.count++;
	}
	if (rc == 0 && ferror(file))
		rc = -EIO;
	fclose(file);
	return rc;
}

int processes_read(const struct question *question, struct reply *out)
{
	char *roots[2] = { (char *)question->words, NULL };
	FTS *tree;
	FTSENT *entry;
	int count = 0, rc = 0;

	if (!question->words_size || *question->words != '/')
		return -EINVAL;
	tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	if (!tree)
		return -errno;
	while (rc == 0 && (entry = fts_read(tree))) {
		if (entry->fts_info == FTS_D && ++count > MPSD_INSPECTOR_CGROUPS)
			rc = -E2BIG;
		else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_NS || entry->fts_info == FTS_ERR)
			rc = entry->fts_errno ? -entry->fts_errno : -EIO;
		else if (entry->fts_info != FTS_DP && strcmp(entry->fts_name, "cgroup.procs") == 0)
			rc = append_processes(entry->fts_path, out);
	}
	fts_close(tree);
	return rc;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Each read may wait for the lock of all cgroups: so mpsd gets those that were read in time, and asks for the rest again. */
int paths_read(const struct question *question, struct reply *out)
{
	int64_t until = now_ms() + MPSD_INSPECTOR_PATHS_MS;

	for (uint32_t i = 0; i < question->head.pairs; i++) {
		char *text = out->payload + out->size;
		ssize_t size;

		if (i && (now_ms() >= until || sizeof(out->payload) - out->size <= MPSD_INSPECTOR_CGROUP_BYTES))
			break;
		size = read_file(question->pairs[i].pid, "cgroup", text, MPSD_INSPECTOR_CGROUP_BYTES);
		if (size == -ENOENT || size == -ESRCH) {
			size = 0;
		} else if (size < 0 || size == MPSD_INSPECTOR_CGROUP_BYTES) {
			*text = '-';
			size = 1;
		}
		text[size] = '\0';
		out->size += (size_t)size + 1;
		out->head.count++;
	}
	return 0;
}
