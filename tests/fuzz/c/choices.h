/* SPDX-License-Identifier: MIT */
/* Shared by the entry points: choices taken from the bytes of one input, the only source of chance, and the invariants. */
#ifndef MPSD_FUZZ_CHOICES_H
#define MPSD_FUZZ_CHOICES_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
	const uint8_t *at;
	const uint8_t *end;
} choices;

static inline void choices_begin(const uint8_t *data, size_t size)
{
	choices.at = data;
	choices.end = data + size;
}

static inline size_t choices_left(void)
{
	return (size_t)(choices.end - choices.at);
}

/* The next bytes, or zeros at the end of the input. */
static inline void take_bytes(void *out, size_t count)
{
	size_t there = choices_left() < count ? choices_left() : count;

	memset(out, 0, count);
	if (there)
		memcpy(out, choices.at, there);
	choices.at += there;
}

static inline uint64_t take_number(size_t bytes)
{
	uint64_t number = 0;

	take_bytes(&number, bytes);
	return number;
}

static inline uint32_t any(uint32_t below)
{
	return (uint32_t)take_number(below <= 256 ? 1 : below <= 65536 ? 2 : 4) % below;
}

static inline void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static inline int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = -3; /* "." and "..", and the directory itself */

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

#endif
