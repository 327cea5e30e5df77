/* layout.h: what the shim has put into its arena, in the order in which the program asked, and the text it is committed as.
 *
 *   {"format": "mpsd-shim-1", "allocations": [[OFFSET, BYTES], ...]}      bytes: as they were asked for
 *
 * No driver, no mpsd, no lock: its owner has one. */
#ifndef SHIM_LAYOUT_H
#define SHIM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct layout_entry {
	uint64_t offset;
	uint64_t bytes;
	bool is_waiting; /* the predecessor's; the program has not claimed it yet */
};

struct layout {
	struct layout_entry *entries;
	size_t count, room;
};

/* 0, -ENOMEM. */
int layout_add(struct layout *layout, uint64_t offset, uint64_t bytes, bool is_waiting);
/* 0, -ENOENT. */
int layout_remove(struct layout *layout, uint64_t offset);
/* The first that waits and was asked for with so many bytes: it moves to the end, as asked for now.  0, -ENOENT. */
int layout_claim(struct layout *layout, uint64_t bytes, uint64_t *offset);
/* One that waits; -ENOENT: none. */
int layout_waiting(const struct layout *layout, uint64_t *offset);
/* To be freed with free(); NULL: no memory. */
char *layout_write(const struct layout *layout, size_t *bytes);
/* All wait.  0; -EBADMSG: it is not the shim's, or broken; -ENOMEM.  Then *layout is empty. */
int layout_read(struct layout *layout, const char *text, size_t bytes);
void layout_clear(struct layout *layout);

#endif
