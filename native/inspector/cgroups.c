/* SPDX-License-Identifier: MIT */
/* Read cgroups of version 2. Their users hold the lock of a directory there for as long as they like, and no signal ends a wait
 * for it: so mpsd itself opens no file of a cgroup. */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FREEZE "/cgroup.freeze"
enum { PATH_BYTES = 2 * MPSD_INSPECTOR_CGROUP_BYTES };

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

/* Look at one cgroup, whose path has room for FREEZE after its length. */
static enum mpsd_inspector_frozen look_at(char *path, size_t length)
{
	char first = '0';
	int fd;

	memcpy(path + length, FREEZE, sizeof(FREEZE));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENAMETOOLONG ? MPSD_INSPECTOR_MAY_BE_FROZEN : MPSD_INSPECTOR_IS_THAWED; /* removed, or no freezer */
	if (read(fd, &first, 1) < 0)
		first = '0'; /* it was just removed */
	close(fd);
	return first == '1' ? MPSD_INSPECTOR_IS_FROZEN : MPSD_INSPECTOR_IS_THAWED;
}

/* Look at the process's cgroup and at those above it, below `root`. cgroup.events would not do: it says 0 as long as one process
 * of the cgroup waits for a file system of its user. */
static enum mpsd_inspector_frozen look_at_process(const char *root, uint32_t pid)
{
	static char text[MPSD_INSPECTOR_CGROUP_BYTES], path[PATH_BYTES];
	ssize_t size = read_file(pid, "cgroup", text, sizeof(text));
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
	memcpy(path, root, root_size);
	memcpy(path + root_size, below, length - root_size);
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
