/* See layout.h. */
#include "layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "{\"format\": \"mpsd-shim-1\", \"allocations\": [";
enum { ENTRY_CHARACTERS = 48, MOST_ENTRIES = 1 << 18 };

int layout_add(struct layout *layout, uint64_t offset, uint64_t bytes, bool is_waiting)
{
	if (layout->count == layout->room) {
		size_t room = layout->room ? layout->room * 2 : 64;
		struct layout_entry *grown = realloc(layout->entries, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		layout->entries = grown;
		layout->room = room;
	}
	layout->entries[layout->count++] = (struct layout_entry){ offset, bytes, is_waiting };
	return 0;
}

static void take_out(struct layout *layout, size_t at)
{
	layout->count--;
	memmove(&layout->entries[at], &layout->entries[at + 1], (layout->count - at) * sizeof(*layout->entries));
}

int layout_remove(struct layout *layout, uint64_t offset)
{
	for (size_t i = 0; i < layout->count; i++)
		if (layout->entries[i].offset == offset) {
			take_out(layout, i);
			return 0;
		}
	return -ENOENT;
}

int layout_claim(struct layout *layout, uint64_t bytes, uint64_t *offset)
{
	for (size_t i = 0; i < layout->count; i++)
		if (layout->entries[i].is_waiting && layout->entries[i].bytes == bytes) {
			*offset = layout->entries[i].offset;
			take_out(layout, i);
			/* cannot fail for lack of room: an entry was just removed */
			return layout_add(layout, *offset, bytes, false);
		}
	return -ENOENT;
}

int layout_waiting(const struct layout *layout, uint64_t *offset)
{
	for (size_t i = 0; i < layout->count; i++)
		if (layout->entries[i].is_waiting) {
			*offset = layout->entries[i].offset;
			return 0;
		}
	return -ENOENT;
}

char *layout_write(const struct layout *layout, size_t *bytes)
{
	size_t room = sizeof(head) + layout->count * ENTRY_CHARACTERS + sizeof("]}"), used;
	char *text = malloc(room);

	if (!text)
		return NULL;
	used = (size_t)snprintf(text, room, "%s", head);
	for (size_t i = 0; i < layout->count; i++)
		used += (size_t)snprintf(text + used, room - used, "%s[%llu, %llu]", i ? ", " : "",
					 (unsigned long long)layout->entries[i].offset,
					 (unsigned long long)layout->entries[i].bytes);
	used += (size_t)snprintf(text + used, room - used, "]}");
	*bytes = used;
	return text;
}

/* As layout_write() has it; digits, and no sign or blank where strtoull would take one. */
static bool read_number(const char **at, uint64_t *out)
{
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	*out = strtoull(*at, &end, 10);
	*at = end;
	return errno == 0;
}

static bool skip(const char **at, const char *word)
{
	size_t length = strlen(word);

	if (strncmp(*at, word, length) != 0)
		return false;
	*at += length;
	return true;
}

static int read_entries(struct layout *layout, const char *at)
{
	uint64_t offset, bytes;

	if (skip(&at, "]}"))
		return *at ? -EBADMSG : 0;
	do {
		if (!skip(&at, "[") || !read_number(&at, &offset) || !skip(&at, ", ") || !read_number(&at, &bytes) || !skip(&at, "]"))
			return -EBADMSG;
		if (layout->count == MOST_ENTRIES)
			return -EBADMSG;
		if (layout_add(layout, offset, bytes, true) < 0)
			return -ENOMEM;
	} while (skip(&at, ", "));
	return skip(&at, "]}") && !*at ? 0 : -EBADMSG;
}

int layout_read(struct layout *layout, const char *text, size_t bytes)
{
	char *copy = malloc(bytes + 1); /* with an end */
	const char *at = copy;
	int rc = -EBADMSG;

	*layout = (struct layout){ 0 };
	if (!copy)
		return -ENOMEM;
	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	if (strlen(copy) == bytes && skip(&at, head))
		rc = read_entries(layout, at);
	free(copy);
	if (rc < 0)
		layout_clear(layout);
	return rc;
}

void layout_clear(struct layout *layout)
{
	free(layout->entries);
	*layout = (struct layout){ 0 };
}
