/* SPDX-License-Identifier: MIT */
/* Any bytes as MessagePack: what is read lies within them, and to skip a value is to read it. */
#include "choices.h"

#define MPSD_NO_CUDA_H
#include <mpsd.h>

static int walk(struct mpsd_unpack *at, int levels);

static int walk_entries(struct mpsd_unpack *at, uint32_t entries, int levels)
{
	for (; entries; entries--)
		if (walk(at, levels - 1) < 0)
			return -EPROTO;
	return 0;
}

static void check_text(const struct mpsd_unpack *at, const char *text, size_t bytes)
{
	static volatile unsigned char sum; /* an address sanitizer sees a read beyond */

	must((const unsigned char *)text + bytes == at->at, "a text lies before what follows it");
	for (size_t i = 0; i < bytes; i++)
		sum = (unsigned char)(sum + (unsigned char)text[i]);
}

/* One value, by the reader of its kind. */
static int walk(struct mpsd_unpack *at, int levels)
{
	const char *text;
	uint32_t entries;
	uint64_t number;
	int64_t whole;
	double real;
	size_t bytes;
	int flag;

	switch (mpsd_unpack_kind(at)) {
	case MPSD_KIND_NIL:
		return mpsd_unpack_nil(at);
	case MPSD_KIND_BOOL:
		return mpsd_unpack_bool(at, &flag);
	case MPSD_KIND_INT: {
		struct mpsd_unpack again = *at, third = *at;
		int is_whole = mpsd_unpack_int(&again, &whole) == 0, is_number = mpsd_unpack_uint(&third, &number) == 0;

		must(!is_whole || !is_number || (uint64_t)whole == number, "an integer is the same as both kinds");
		return mpsd_unpack_double(at, &real);
	}
	case MPSD_KIND_DOUBLE:
		return mpsd_unpack_double(at, &real);
	case MPSD_KIND_TEXT:
		if (mpsd_unpack_text(at, &text, &bytes) < 0)
			return -EPROTO;
		check_text(at, text, bytes);
		return 0;
	case MPSD_KIND_ARRAY:
		return !levels || mpsd_unpack_array(at, &entries) < 0 ? -EPROTO : walk_entries(at, entries, levels);
	case MPSD_KIND_MAP:
		return !levels || mpsd_unpack_map(at, &entries) < 0 ? -EPROTO : walk_entries(at, 2 * entries, levels);
	default:
		return -EPROTO;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned char *copy = malloc(size ? size : 1); /* of that size exactly */
	struct mpsd_unpack read, skipped, found;
	int rc;

	memcpy(copy, data, size);
	mpsd_unpack_begin(&read, copy, size);
	skipped = read;
	mpsd_unpack_find(&read, "items", &found);
	rc = walk(&read, 16);
	must((rc == 0) == (mpsd_unpack_skip(&skipped) == 0), "what can be read can be skipped");
	must(rc < 0 || read.at == skipped.at, "both end at one place");
	must(read.at <= read.end && skipped.at <= skipped.end, "within the bytes");
	free(copy);
	return 0;
}
