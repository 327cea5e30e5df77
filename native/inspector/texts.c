/* SPDX-License-Identifier: MIT */
/* Read small files of a process, and list its threads and children. Its user can hold the directories in which the kernel looks
 * these names up, and then the open waits. */
#include "inspector.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(MPSD_INSPECTOR_TEXT_BYTES == sizeof(((struct reply *)0)->payload), "the payload of a datagram");

int text_read(const struct question *question, struct reply *out)
{
	static const char *const names[] = { "status", "comm", "uid_map" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (is_word(question, names[i], strlen(names[i]))) {
			ssize_t size = read_file(question->head.pid, names[i], out->payload, sizeof(out->payload));

			out->size = size < 0 ? 0 : (size_t)size;
			return size < 0 ? (int)size : 0;
		}
	}
	return -EINVAL;
}

/* 0; -E2BIG when the datagram is full. */
static int append_number(struct reply *out, long number)
{
	int32_t one = (int32_t)number;

	if (sizeof(out->payload) - out->size < sizeof(one))
		return -E2BIG;
	memcpy(out->payload + out->size, &one, sizeof(one));
	out->size += sizeof(one);
	return 0;
}

/* Append the numbers of a text, with a space after each. */
static int append_numbers(struct reply *out, char *text)
{
	char *end;
	int rc = 0;

	for (long number = strtol(text, &end, 10); rc == 0 && end != text; number = strtol(text, &end, 10)) {
		rc = append_number(out, number);
		text = end;
	}
	return rc;
}

/* Append the children of a thread; none if it has ended, or the kernel does not list them (CONFIG_PROC_CHILDREN). */
static int append_children(uint32_t pid, const char *thread, void *out)
{
	static char text[MPSD_INSPECTOR_DATAGRAM];
	char name[64];
	ssize_t size;

	snprintf(name, sizeof(name), "task/%.10s/children", thread);
	size = read_file(pid, name, text, sizeof(text));
	if (size < 0)
		return 0;
	if ((size_t)size == sizeof(text))
		return -E2BIG;
	text[size] = '\0';
	return append_numbers(out, text);
}

static int append_thread(uint32_t pid, const char *thread, void *out)
{
	(void)pid;
	return append_number(out, atol(thread));
}

int for_threads(uint32_t pid, int most, int (*each)(uint32_t, const char *, void *), void *out)
{
	_Alignas(struct dirent64) char entries[1024]; /* readdir's buffer is of a thousand threads, and the kernel fills it */
	char path[64 + sizeof(PROC)];
	ssize_t size = 0;
	int rc = 0, folder;

	snprintf(path, sizeof(path), PROC "/%u/task", pid);
	folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return -errno;
	while (rc == 0 && most && (size = getdents64(folder, entries, sizeof(entries))) > 0) {
		const struct dirent64 *entry;

		for (ssize_t at = 0; rc == 0 && most && at < size; at += entry->d_reclen) {
			entry = (const struct dirent64 *)(entries + at);
			if (entry->d_name[0] != '.') {
				rc = each(pid, entry->d_name, out);
				most--;
			}
		}
	}
	if (size < 0)
		rc = -errno;
	close(folder);
	return rc;
}

int children_read(const struct question *question, struct reply *out)
{
	return for_threads(question->head.pid, MPSD_INSPECTOR_THREADS, append_children, out);
}

int threads_read(const struct question *question, struct reply *out)
{
	int most = is_word(question, "few", 3) ? MPSD_INSPECTOR_FEW_THREADS : MPSD_INSPECTOR_THREADS;

	return for_threads(question->head.pid, most, append_thread, out);
}
