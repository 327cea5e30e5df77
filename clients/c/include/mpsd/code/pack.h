/* SPDX-License-Identifier: MIT */
/* mpsd/code/pack.h: implementation of mpsd/pack.h. No I/O; allocates no memory. */
#ifndef MPSD_CODE_PACK_H
#define MPSD_CODE_PACK_H

enum { MPSD_UNPACK_LEVELS = 16 };

MPSD_API void mpsd_pack_begin(struct mpsd_pack *pack, void *bytes, size_t room)
{
	pack->bytes = (unsigned char *)bytes;
	pack->room = room;
	pack->used = 0;
	pack->failed = 0;
}

static inline void mpsd_pack_raw(struct mpsd_pack *pack, const void *bytes, size_t count)
{
	if (pack->failed || count > pack->room - pack->used) {
		pack->failed = 1;
		return;
	}
	if (count)
		memcpy(pack->bytes + pack->used, bytes, count);
	pack->used += count;
}

/* A type byte, then a big-endian number of the given size. */
static inline void mpsd_pack_head(struct mpsd_pack *pack, unsigned first, uint64_t number, unsigned bytes)
{
	unsigned char head[9];

	head[0] = (unsigned char)first;
	for (unsigned i = 0; i < bytes; i++)
		head[1 + i] = (unsigned char)(number >> (8 * (bytes - 1 - i)));
	mpsd_pack_raw(pack, head, 1 + bytes);
}

MPSD_API void mpsd_pack_nil(struct mpsd_pack *pack)
{
	mpsd_pack_head(pack, 0xc0, 0, 0);
}

MPSD_API void mpsd_pack_bool(struct mpsd_pack *pack, int value)
{
	mpsd_pack_head(pack, value ? 0xc3 : 0xc2, 0, 0);
}

MPSD_API void mpsd_pack_uint(struct mpsd_pack *pack, uint64_t value)
{
	if (value < 0x80)
		mpsd_pack_head(pack, (unsigned)value, 0, 0);
	else if (value <= UINT32_MAX)
		mpsd_pack_head(pack, 0xce, value, 4);
	else
		mpsd_pack_head(pack, 0xcf, value, 8);
}

MPSD_API void mpsd_pack_int(struct mpsd_pack *pack, int64_t value)
{
	if (value >= 0)
		mpsd_pack_uint(pack, (uint64_t)value);
	else
		mpsd_pack_head(pack, 0xd3, (uint64_t)value, 8);
}

MPSD_API void mpsd_pack_double(struct mpsd_pack *pack, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	mpsd_pack_head(pack, 0xcb, bits, 8);
}

MPSD_API void mpsd_pack_text(struct mpsd_pack *pack, const char *text)
{
	size_t count = strlen(text);

	if (count > MPSD_DATAGRAM_BYTES) {
		pack->failed = 1;
		return;
	}
	if (count < 32)
		mpsd_pack_head(pack, 0xa0 | (unsigned)count, 0, 0);
	else
		mpsd_pack_head(pack, 0xdb, count, 4);
	mpsd_pack_raw(pack, text, count);
}

MPSD_API void mpsd_pack_array(struct mpsd_pack *pack, uint32_t entries)
{
	if (entries < 16)
		mpsd_pack_head(pack, 0x90 | entries, 0, 0);
	else
		mpsd_pack_head(pack, 0xdd, entries, 4);
}

MPSD_API void mpsd_pack_map(struct mpsd_pack *pack, uint32_t entries)
{
	if (entries < 16)
		mpsd_pack_head(pack, 0x80 | entries, 0, 0);
	else
		mpsd_pack_head(pack, 0xdf, entries, 4);
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

MPSD_API void mpsd_unpack_begin(struct mpsd_unpack *unpack, const void *bytes, size_t count)
{
	unpack->at = (const unsigned char *)bytes;
	unpack->end = unpack->at + count;
	unpack->failed = 0;
}

MPSD_API enum mpsd_kind mpsd_unpack_kind(const struct mpsd_unpack *unpack)
{
	unsigned first;

	if (unpack->failed || unpack->at >= unpack->end)
		return MPSD_KIND_NONE;
	first = *unpack->at;
	if (first < 0x80 || first >= 0xe0 || (first >= 0xcc && first <= 0xd3))
		return MPSD_KIND_INT;
	if (first < 0x90 || first == 0xde || first == 0xdf)
		return MPSD_KIND_MAP;
	if (first < 0xa0 || first == 0xdc || first == 0xdd)
		return MPSD_KIND_ARRAY;
	if (first < 0xc0 || (first >= 0xd9 && first <= 0xdb))
		return MPSD_KIND_TEXT;
	if (first == 0xc2 || first == 0xc3)
		return MPSD_KIND_BOOL;
	if (first == 0xca || first == 0xcb)
		return MPSD_KIND_DOUBLE;
	return first == 0xc0 ? MPSD_KIND_NIL : MPSD_KIND_NONE;
}

static inline int mpsd_unpack_fail(struct mpsd_unpack *unpack)
{
	unpack->failed = 1;
	return -EPROTO;
}

/* The bytes beyond the first one: a number of 1, 2, 4 or 8 of them.  0 or -EPROTO. */
static inline int mpsd_unpack_number(struct mpsd_unpack *unpack, unsigned bytes, uint64_t *number)
{
	uint64_t made = 0;

	if ((size_t)(unpack->end - unpack->at) < 1 + (size_t)bytes)
		return mpsd_unpack_fail(unpack);
	for (unsigned i = 0; i < bytes; i++)
		made = made << 8 | unpack->at[1 + i];
	unpack->at += 1 + bytes;
	*number = made;
	return 0;
}

MPSD_API int mpsd_unpack_nil(struct mpsd_unpack *unpack)
{
	if (mpsd_unpack_kind(unpack) != MPSD_KIND_NIL)
		return mpsd_unpack_fail(unpack);
	unpack->at++;
	return 0;
}

MPSD_API int mpsd_unpack_bool(struct mpsd_unpack *unpack, int *value)
{
	if (mpsd_unpack_kind(unpack) != MPSD_KIND_BOOL)
		return mpsd_unpack_fail(unpack);
	*value = *unpack->at++ == 0xc3;
	return 0;
}

/* *is_negative: then *number is its two's complement. */
static inline int mpsd_unpack_integer(struct mpsd_unpack *unpack, uint64_t *number, int *is_negative)
{
	unsigned first, bytes;
	uint64_t made;

	if (mpsd_unpack_kind(unpack) != MPSD_KIND_INT)
		return mpsd_unpack_fail(unpack);
	first = *unpack->at;
	if (first < 0x80 || first >= 0xe0) {
		unpack->at++;
		*number = first < 0x80 ? first : (uint64_t)(int64_t)(signed char)first;
		*is_negative = first >= 0xe0;
		return 0;
	}
	bytes = 1U << (first & 3);
	if (mpsd_unpack_number(unpack, bytes, &made) < 0)
		return -EPROTO;
	*is_negative = first >= 0xd0 && (made >> (8 * bytes - 1)) & 1;
	*number = *is_negative && bytes < 8 ? made | ~(uint64_t)0 << (8 * bytes) : made;
	return 0;
}

MPSD_API int mpsd_unpack_uint(struct mpsd_unpack *unpack, uint64_t *value)
{
	uint64_t number;
	int is_negative;

	if (mpsd_unpack_integer(unpack, &number, &is_negative) < 0)
		return -EPROTO;
	if (is_negative)
		return mpsd_unpack_fail(unpack);
	*value = number;
	return 0;
}

MPSD_API int mpsd_unpack_int(struct mpsd_unpack *unpack, int64_t *value)
{
	uint64_t number;
	int is_negative;

	if (mpsd_unpack_integer(unpack, &number, &is_negative) < 0)
		return -EPROTO;
	if (!is_negative && number > INT64_MAX)
		return mpsd_unpack_fail(unpack);
	*value = (int64_t)number;
	return 0;
}

MPSD_API int mpsd_unpack_double(struct mpsd_unpack *unpack, double *value)
{
	uint64_t number;
	uint32_t half;
	float small;
	int is_negative;

	if (mpsd_unpack_kind(unpack) == MPSD_KIND_INT) {
		if (mpsd_unpack_integer(unpack, &number, &is_negative) < 0)
			return -EPROTO;
		*value = is_negative ? (double)(int64_t)number : (double)number;
		return 0;
	}
	if (mpsd_unpack_kind(unpack) != MPSD_KIND_DOUBLE)
		return mpsd_unpack_fail(unpack);
	if (*unpack->at == 0xcb) {
		if (mpsd_unpack_number(unpack, 8, &number) < 0)
			return -EPROTO;
		memcpy(value, &number, sizeof(*value));
		return 0;
	}
	if (mpsd_unpack_number(unpack, 4, &number) < 0)
		return -EPROTO;
	half = (uint32_t)number;
	memcpy(&small, &half, sizeof(small));
	*value = (double)small;
	return 0;
}

MPSD_API int mpsd_unpack_text(struct mpsd_unpack *unpack, const char **text, size_t *bytes)
{
	uint64_t count;
	unsigned first;

	if (mpsd_unpack_kind(unpack) != MPSD_KIND_TEXT)
		return mpsd_unpack_fail(unpack);
	first = *unpack->at;
	if (first < 0xc0) {
		count = first & 0x1f;
		unpack->at++;
	} else if (mpsd_unpack_number(unpack, 1U << (first - 0xd9), &count) < 0) {
		return -EPROTO;
	}
	if (count > (uint64_t)(unpack->end - unpack->at))
		return mpsd_unpack_fail(unpack);
	*text = (const char *)unpack->at;
	*bytes = (size_t)count;
	unpack->at += count;
	return 0;
}

/* kind: ARRAY or MAP.  Every entry has a byte at least: a number that cannot be true is not believed. */
static inline int mpsd_unpack_entries(struct mpsd_unpack *unpack, enum mpsd_kind kind, uint32_t *entries)
{
	uint64_t count;
	unsigned first;

	if (mpsd_unpack_kind(unpack) != kind)
		return mpsd_unpack_fail(unpack);
	first = *unpack->at;
	if (first < 0xa0) {
		count = first & 0x0f;
		unpack->at++;
	} else if (mpsd_unpack_number(unpack, first & 1 ? 4 : 2, &count) < 0) {
		return -EPROTO;
	}
	if (count * (kind == MPSD_KIND_MAP ? 2 : 1) > (uint64_t)(unpack->end - unpack->at))
		return mpsd_unpack_fail(unpack);
	*entries = (uint32_t)count;
	return 0;
}

MPSD_API int mpsd_unpack_array(struct mpsd_unpack *unpack, uint32_t *entries)
{
	return mpsd_unpack_entries(unpack, MPSD_KIND_ARRAY, entries);
}

MPSD_API int mpsd_unpack_map(struct mpsd_unpack *unpack, uint32_t *entries)
{
	return mpsd_unpack_entries(unpack, MPSD_KIND_MAP, entries);
}

static inline int mpsd_unpack_skip_to(struct mpsd_unpack *unpack, int levels)
{
	enum mpsd_kind kind = mpsd_unpack_kind(unpack);
	const char *text;
	uint32_t entries;
	uint64_t number;
	size_t bytes;
	int flag;
	double real;

	switch (kind) {
	case MPSD_KIND_NIL:
		return mpsd_unpack_nil(unpack);
	case MPSD_KIND_BOOL:
		return mpsd_unpack_bool(unpack, &flag);
	case MPSD_KIND_INT:
		return mpsd_unpack_integer(unpack, &number, &flag);
	case MPSD_KIND_DOUBLE:
		return mpsd_unpack_double(unpack, &real);
	case MPSD_KIND_TEXT:
		return mpsd_unpack_text(unpack, &text, &bytes);
	case MPSD_KIND_ARRAY:
	case MPSD_KIND_MAP:
		if (!levels || mpsd_unpack_entries(unpack, kind, &entries) < 0)
			return mpsd_unpack_fail(unpack);
		for (uint64_t left = (uint64_t)entries * (kind == MPSD_KIND_MAP ? 2 : 1); left; left--)
			if (mpsd_unpack_skip_to(unpack, levels - 1) < 0)
				return -EPROTO;
		return 0;
	default:
		return mpsd_unpack_fail(unpack);
	}
}

MPSD_API int mpsd_unpack_skip(struct mpsd_unpack *unpack)
{
	return mpsd_unpack_skip_to(unpack, MPSD_UNPACK_LEVELS);
}

MPSD_API int mpsd_unpack_find(const struct mpsd_unpack *map, const char *key, struct mpsd_unpack *value)
{
	struct mpsd_unpack at = *map;
	size_t wanted = strlen(key), bytes;
	const char *text;
	uint32_t entries;

	if (mpsd_unpack_map(&at, &entries) < 0)
		return -EPROTO;
	for (; entries; entries--) {
		if (mpsd_unpack_text(&at, &text, &bytes) < 0)
			return -EPROTO;
		if (bytes == wanted && !memcmp(text, key, bytes)) {
			*value = at;
			return 0;
		}
		if (mpsd_unpack_skip(&at) < 0)
			return -EPROTO;
	}
	return -ENOENT;
}

/* The number of a key: 0, -ENOENT, -EPROTO. */
static inline int mpsd_unpack_find_uint(const struct mpsd_unpack *map, const char *key, uint64_t *value)
{
	struct mpsd_unpack at;
	int rc = mpsd_unpack_find(map, key, &at);

	return rc < 0 ? rc : mpsd_unpack_uint(&at, value);
}

#endif
