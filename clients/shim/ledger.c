/* A sorted array: a process has hundreds of ranges, rarely thousands, and most calls are lookups. */
#include "ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

static uint64_t end_of(const struct ledger_range *range)
{
	return range->base + range->bytes;
}

/* The index of the first range that ends beyond an address. */
static size_t index_beyond(const struct ledger *ledger, uint64_t address)
{
	size_t low = 0, high = ledger->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (end_of(&ledger->ranges[middle]) > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static int grow(struct ledger *ledger)
{
	size_t room = ledger->room ? ledger->room * 2 : FIRST_ROOM;
	struct ledger_range *ranges;

	if (ledger->count < ledger->room)
		return 0;
	ranges = realloc(ledger->ranges, room * sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	ledger->ranges = ranges;
	ledger->room = room;
	return 0;
}

int ledger_add(struct ledger *ledger, uint64_t base, uint64_t bytes, enum ledger_kind kind, uint64_t note)
{
	size_t at;

	if (!bytes || bytes > UINT64_MAX - base)
		return -EINVAL;
	at = index_beyond(ledger, base);
	if (at < ledger->count && ledger->ranges[at].base < base + bytes)
		return -EEXIST;
	if (grow(ledger) < 0)
		return -ENOMEM;
	memmove(&ledger->ranges[at + 1], &ledger->ranges[at], (ledger->count - at) * sizeof(*ledger->ranges));
	ledger->ranges[at] = (struct ledger_range){ base, bytes, kind, note };
	ledger->count++;
	return 0;
}

int ledger_remove(struct ledger *ledger, uint64_t base)
{
	size_t at = index_beyond(ledger, base);

	if (at == ledger->count || ledger->ranges[at].base != base)
		return -ENOENT;
	ledger->count--;
	memmove(&ledger->ranges[at], &ledger->ranges[at + 1], (ledger->count - at) * sizeof(*ledger->ranges));
	return 0;
}

struct ledger_range *ledger_next(struct ledger *ledger, uint64_t address)
{
	size_t at = index_beyond(ledger, address);

	return at < ledger->count ? &ledger->ranges[at] : NULL;
}

struct ledger_range *ledger_find(struct ledger *ledger, uint64_t address)
{
	struct ledger_range *next = ledger_next(ledger, address);

	return next && next->base <= address ? next : NULL;
}

bool ledger_hole(struct ledger *ledger, uint64_t from, uint64_t to, uint64_t *base, uint64_t *bytes)
{
	for (size_t at = index_beyond(ledger, from); from < to; at++) {
		uint64_t until = at < ledger->count && ledger->ranges[at].base < to ? ledger->ranges[at].base : to;

		if (from < until) {
			*base = from;
			*bytes = until - from;
			return true;
		}
		if (at == ledger->count)
			return false;
		from = end_of(&ledger->ranges[at]);
	}
	return false;
}

uint64_t ledger_place(struct ledger *ledger, uint64_t from, uint64_t to, uint64_t bytes, uint64_t gap)
{
	uint64_t start = from; /* of the place and its two gaps */

	if (!bytes || gap > (UINT64_MAX - bytes) / 2)
		return 0;
	for (size_t at = index_beyond(ledger, from);; at++) {
		const struct ledger_range *range = at < ledger->count ? &ledger->ranges[at] : NULL;
		uint64_t until = range && range->base < to ? range->base : to;

		if (range && range->kind == LEDGER_GUARD && range->base < to)
			continue;
		if (start < until && until - start >= bytes + 2 * gap)
			return start + gap;
		if (!range || range->base >= to)
			return 0;
		start = end_of(range);
	}
}

void ledger_clear(struct ledger *ledger)
{
	free(ledger->ranges);
	*ledger = (struct ledger){ 0 };
}
