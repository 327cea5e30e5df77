/* SPDX-License-Identifier: MIT */
/* Table: the descriptors held, under their ids.  It owns every descriptor in it.
 *
 * Sorted, because LIST goes on after an id that may be gone by then. */
#include "keeper.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int compare(const char *left, const char *right)
{
	return memcmp(left, right, MPSD_KEEPER_ID_BYTES); /* padded with NUL, which is below all others */
}

/* Return the index of the first item with an id not below `id`. */
static uint32_t place_of(const struct table *table, const char *id)
{
	uint32_t low = 0, high = table->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (compare(table->items[middle]->id, id) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_at(const struct table *table, uint32_t place, const char *id)
{
	return place < table->count && compare(table->items[place]->id, id) == 0;
}

/* NULL, or the item, which stays the table's. */
struct item *table_find(const struct table *table, const char *id)
{
	uint32_t place = place_of(table, id);

	return is_at(table, place, id) ? table->items[place] : NULL;
}

/* The place of the first item beyond `id`, whether or not that is held. */
uint32_t table_after(const struct table *table, const char *id)
{
	uint32_t place = place_of(table, id);

	return is_at(table, place, id) ? place + 1 : place;
}

static int grow(struct table *table)
{
	uint32_t room = table->room ? table->room * 2 : 64; /* max is at most 2^20: no wrap */
	struct item **items = realloc(table->items, room * sizeof(struct item *));

	if (!items)
		return -ENOMEM;
	table->items = items;
	table->room = room;
	return 0;
}

/* Takes item->fd, and closes what was held under the id.  0, or -ENOSPC, -ENOMEM: nothing was taken. */
int table_put(struct table *table, const struct item *item)
{
	uint32_t place = place_of(table, item->id);
	struct item *kept;

	if (is_at(table, place, item->id)) {
		close(table->items[place]->fd);
		*table->items[place] = *item;
		return 0;
	}
	if (table->count >= table->max)
		return -ENOSPC;
	if (table->count == table->room && grow(table) != 0)
		return -ENOMEM;
	kept = malloc(sizeof(*kept));
	if (!kept)
		return -ENOMEM;
	*kept = *item;
	memmove(table->items + place + 1, table->items + place,
		(table->count - place) * sizeof(struct item *));
	table->items[place] = kept;
	table->count++;
	return 0;
}

/* Closes and forgets an item that table_find() gave. */
void table_drop(struct table *table, struct item *item)
{
	uint32_t place = place_of(table, item->id);

	close(item->fd);
	free(item);
	table->count--;
	memmove(table->items + place, table->items + place + 1,
		(table->count - place) * sizeof(struct item *));
}

void table_clear(struct table *table)
{
	for (uint32_t i = 0; i < table->count; i++) {
		close(table->items[i]->fd);
		free(table->items[i]);
	}
	free(table->items);
	table->items = NULL;
	table->count = table->room = 0;
}
