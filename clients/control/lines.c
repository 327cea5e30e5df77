/* SPDX-License-Identifier: MIT */
/* Lines: how commands are cut out of what comes on stdin.  No I/O, no allocation, any bytes.
 *
 * A newline ends a line, and so does the end of the input where bytes came since.  A NUL ends the
 * command but not the line, as in the vendor's program.  One CR before the end is dropped. */
#include "control.h"

#include <string.h>

static int give(struct lines *lines, lines_sink *sink, void *context)
{
	bool has_cr = lines->length > 0 && lines->last == '\r' && !lines->cut;
	uint64_t length = lines->length - (has_cr ? 1 : 0);

	lines->length = 0;
	lines->open = false;
	lines->cut = false;
	return sink(context, lines->text, length);
}

static void keep(struct lines *lines, const char *bytes, size_t count)
{
	if (lines->length < sizeof(lines->text)) {
		size_t room = sizeof(lines->text) - (size_t)lines->length;

		memcpy(lines->text + lines->length, bytes, count < room ? count : room);
	}
	lines->length += count;
	lines->last = bytes[count - 1];
}

/* Bytes without a newline. */
static void append(struct lines *lines, const char *bytes, size_t count)
{
	const char *nul = memchr(bytes, '\0', count);
	size_t wanted = nul ? (size_t)(nul - bytes) : count;

	lines->open = true;
	if (lines->cut)
		return;
	if (wanted > 0)
		keep(lines, bytes, wanted);
	lines->cut = nul != NULL;
}

/* Gives every line that `bytes` completes to `sink`.  0, or what a sink answered to end the feeding. */
int lines_feed(struct lines *lines, const char *bytes, size_t count, lines_sink *sink, void *context)
{
	while (count > 0) {
		const char *newline = memchr(bytes, '\n', count);
		size_t part = newline ? (size_t)(newline - bytes) : count;
		int rc;

		if (part > 0)
			append(lines, bytes, part);
		if (!newline)
			return 0;
		rc = give(lines, sink, context);
		if (rc)
			return rc;
		bytes += part + 1;
		count -= part + 1;
	}
	return 0;
}

/* The input has ended: passes on the last line if it had no newline. */
int lines_finish(struct lines *lines, lines_sink *sink, void *context)
{
	return lines->open ? give(lines, sink, context) : 0;
}
