/* SPDX-License-Identifier: MIT */
/* Read the environment, command line and mappings of a process. */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t read_file(uint32_t pid, const char *name, char *out, size_t size)
{
	char path[64 + sizeof(PROC)];
	size_t have = 0;
	ssize_t got = 1;
	int fd;

	snprintf(path, sizeof(path), PROC "/%u/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (have < size && got > 0) {
		got = read(fd, out + have, size - have);
		if (got > 0)
			have += (size_t)got;
	}
	got = got < 0 ? -errno : (ssize_t)have;
	close(fd);
	return got;
}

/* Append `size` bytes and a NUL.  0, or -E2BIG when the datagram is full. */
static int append(struct reply *out, const char *text, size_t size)
{
	if (size + 1 > sizeof(out->payload) - out->size)
		return -E2BIG;
	memcpy(out->payload + out->size, text, size);
	out->size += size;
	out->payload[out->size++] = '\0';
	return 0;
}

int is_word(const struct question *question, const char *text, size_t size)
{
	const char *end = question->words + question->words_size;

	for (const char *word = question->words; word < end; word += strlen(word) + 1)
		if (strlen(word) == size && memcmp(word, text, size) == 0)
			return 1;
	return 0;
}

/* Append the entries of an environment that the request names, in the order of the environment. */
static int append_entries(const struct question *question, const char *environment, size_t size, struct reply *out)
{
	int rc = 0;

	for (size_t at = 0; at < size && rc == 0;) {
		const char *entry = environment + at;
		size_t length = strnlen(entry, size - at);
		const char *sign = memchr(entry, '=', length);

		if (sign && is_word(question, entry, (size_t)(sign - entry)))
			rc = append(out, entry, length);
		at += length + 1;
	}
	return rc;
}

/* Append the program's name and the entries of the environment, which has `room` bytes. */
static int read_facts(const struct question *question, struct reply *out, char *environment, size_t room)
{
	char program[MPSD_INSPECTOR_PROGRAM];
	ssize_t size = read_file(question->head.pid, "environ", environment, room);
	ssize_t named;
	int rc;

	if (size < 0)
		return (int)size;
	if ((size_t)size == room)
		return -E2BIG;
	named = read_file(question->head.pid, "cmdline", program, sizeof(program));
	if (named < 0)
		return (int)named;
	rc = append(out, program, strnlen(program, (size_t)named));
	return rc ? rc : append_entries(question, environment, (size_t)size, out);
}

int facts_read(const struct question *question, struct reply *out)
{
	char *environment = malloc(MPSD_INSPECTOR_ENVIRON + 1); /* not static: main locks what is there */
	int rc = environment ? read_facts(question, out, environment, MPSD_INSPECTOR_ENVIRON + 1) : -ENOMEM;

	free(environment);
	return rc;
}

int maps_read(const struct question *question, struct reply *out)
{
	ssize_t size = read_file(question->head.pid, "maps", out->payload, MPSD_INSPECTOR_MAPS_BYTES);

	if (size < 0)
		return (int)size;
	out->size = (size_t)size;
	return 0;
}
