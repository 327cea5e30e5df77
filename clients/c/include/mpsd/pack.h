/* SPDX-License-Identifier: MIT */
/*
 * mpsd/pack.h: the part of MessagePack that mpsd's protocol uses, written into and read from memory of a given size.
 *
 * Errors are sticky: after a failure every further call does nothing, so that only the last one need be checked. Input is
 * untrusted: no length is used before the bytes have arrived.
 */
#ifndef MPSD_PACK_H
#define MPSD_PACK_H

struct mpsd_pack {
	unsigned char *bytes; /* borrowed */
	size_t room;
	size_t used;
	int failed; /* it did not fit */
};

struct mpsd_unpack {
	const unsigned char *at; /* borrowed */
	const unsigned char *end;
	int failed; /* it ended too early, or was of another kind */
};

enum mpsd_kind {
	MPSD_KIND_NONE = 0, /* the end, or nothing that the protocol has */
	MPSD_KIND_NIL = 1,
	MPSD_KIND_BOOL = 2,
	MPSD_KIND_INT = 3,
	MPSD_KIND_DOUBLE = 4,
	MPSD_KIND_TEXT = 5,
	MPSD_KIND_ARRAY = 6,
	MPSD_KIND_MAP = 7
};

MPSD_API void mpsd_pack_begin(struct mpsd_pack *pack, void *bytes, size_t room);
MPSD_API void mpsd_pack_nil(struct mpsd_pack *pack);
MPSD_API void mpsd_pack_bool(struct mpsd_pack *pack, int value);
MPSD_API void mpsd_pack_uint(struct mpsd_pack *pack, uint64_t value);
MPSD_API void mpsd_pack_int(struct mpsd_pack *pack, int64_t value);
MPSD_API void mpsd_pack_double(struct mpsd_pack *pack, double value);
MPSD_API void mpsd_pack_text(struct mpsd_pack *pack, const char *text);
MPSD_API void mpsd_pack_array(struct mpsd_pack *pack, uint32_t entries); /* then so many values */
MPSD_API void mpsd_pack_map(struct mpsd_pack *pack, uint32_t entries);   /* then so many times a text and a value */

MPSD_API void mpsd_unpack_begin(struct mpsd_unpack *unpack, const void *bytes, size_t count);
MPSD_API enum mpsd_kind mpsd_unpack_kind(const struct mpsd_unpack *unpack); /* of the next value */
/* Each takes one value.  0; -EPROTO when the next one is of another kind or outside the range; then *value is untouched. */
MPSD_API int mpsd_unpack_nil(struct mpsd_unpack *unpack);
MPSD_API int mpsd_unpack_bool(struct mpsd_unpack *unpack, int *value);
MPSD_API int mpsd_unpack_uint(struct mpsd_unpack *unpack, uint64_t *value);
MPSD_API int mpsd_unpack_int(struct mpsd_unpack *unpack, int64_t *value);
MPSD_API int mpsd_unpack_double(struct mpsd_unpack *unpack, double *value); /* of an integer too */
MPSD_API int mpsd_unpack_text(struct mpsd_unpack *unpack, const char **text, size_t *bytes); /* within the bytes; no NUL */
MPSD_API int mpsd_unpack_array(struct mpsd_unpack *unpack, uint32_t *entries);
MPSD_API int mpsd_unpack_map(struct mpsd_unpack *unpack, uint32_t *entries);
MPSD_API int mpsd_unpack_skip(struct mpsd_unpack *unpack); /* any value, up to 16 levels deep */
/* The value of a key of the map that comes next; *map stays before it.  -ENOENT: no such key.  -EPROTO: no map, or broken. */
MPSD_API int mpsd_unpack_find(const struct mpsd_unpack *map, const char *key, struct mpsd_unpack *value);

#endif
