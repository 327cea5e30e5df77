/* SPDX-License-Identifier: MIT */
/* Visible: find the bytes that a terminal merely displays. Bytes that move its cursor, change its state or the order of its
 * letters are found here, and written as \xNN by output.c. No I/O. */
#include "control.h"

struct range {
	uint32_t first, last;
};

static const struct range unseen[] = { /* of Unicode above ASCII: control, direction of writing, no width, separators of lines */
	{ 0x80, 0x9f },	      { 0x61c, 0x61c },	    { 0x180e, 0x180e },	    { 0x200b, 0x200f },	      { 0x2028, 0x202e },
	{ 0x2060, 0x206f },   { 0xd800, 0xdfff },   { 0xfeff, 0xfeff },	    { 0xfff9, 0xfffb },	      { 0xe0000, 0xe0fff },
};

static bool is_seen(uint32_t character)
{
	for (size_t i = 0; i < sizeof(unseen) / sizeof(unseen[0]); i++)
		if (character >= unseen[i].first && character <= unseen[i].last)
			return false;
	return character <= 0x10ffff;
}

/* The length of one complete, displayed UTF-8 character above ASCII; 0: the bytes are not such a character. */
static size_t wide(const unsigned char *bytes, size_t count)
{
	/* the least value of each length: a longer form is invalid UTF-8 */
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t length = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
	uint32_t character = bytes[0] & (0xffu >> (length + 1));

	if (bytes[0] < 0xc0 || bytes[0] >= 0xf8 || length > count)
		return 0;
	for (size_t i = 1; i < length; i++) {
		if ((bytes[i] & 0xc0) != 0x80)
			return 0;
		character = character << 6 | (bytes[i] & 0x3f);
	}
	return character >= least[length] && is_seen(character) ? length : 0;
}

/* How many bytes from the first on may be written as they are. */
size_t visible_length(const char *text, size_t count)
{
	const unsigned char *bytes = (const unsigned char *)text;
	size_t at = 0, length;

	while (at < count) {
		if (bytes[at] < 0x80)
			length = (bytes[at] >= ' ' && bytes[at] != 0x7f) || bytes[at] == '\n' || bytes[at] == '\t';
		else
			length = wide(bytes + at, count - at);
		if (length == 0)
			break;
		at += length;
	}
	return at;
}
