/* A treap: ordered by address, and by chance as high as it must be to stay flat. */
#include "spans.h"

static uint32_t draw(struct spans *spans)
{
	uint32_t x = spans->chance ? spans->chance : 2463534242u;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return spans->chance = x;
}

static void split(struct span *root, uint64_t base, struct span **low, struct span **high)
{
	while (root) {
		if (root->base < base) {
			*low = root;
			low = &root->above;
			root = root->above;
		} else {
			*high = root;
			high = &root->below;
			root = root->below;
		}
	}
	*low = *high = NULL;
}

static struct span *join(struct span *low, struct span *high)
{
	struct span *root = NULL, **at = &root;

	while (low && high) {
		if (low->weight > high->weight) {
			*at = low;
			at = &low->above;
			low = low->above;
		} else {
			*at = high;
			at = &high->below;
			high = high->below;
		}
	}
	*at = low ? low : high;
	return root;
}

void span_add(struct spans *spans, struct span *span)
{
	struct span **at = &spans->root;

	span->weight = draw(spans);
	while (*at && (*at)->weight >= span->weight)
		at = span->base < (*at)->base ? &(*at)->below : &(*at)->above;
	split(*at, span->base, &span->below, &span->above);
	*at = span;
}

void span_take(struct spans *spans, struct span *span)
{
	struct span **at = &spans->root;

	while (*at != span)
		at = span->base < (*at)->base ? &(*at)->below : &(*at)->above;
	*at = join(span->below, span->above);
}

struct span *span_from(const struct spans *spans, uint64_t address)
{
	struct span *found = NULL, *at = spans->root;

	while (at) {
		if (at->base + at->bytes > address) {
			found = at;
			at = at->below;
		} else {
			at = at->above;
		}
	}
	return found;
}

struct span *span_at(const struct spans *spans, uint64_t address)
{
	struct span *found = span_from(spans, address);

	return found && found->base <= address ? found : NULL;
}

struct span *span_next(const struct spans *spans, const struct span *span)
{
	return span_from(spans, span->base + span->bytes);
}

bool span_meets(const struct spans *spans, uint64_t base, uint64_t bytes)
{
	const struct span *first = span_from(spans, base);

	return first && first->base < base + bytes;
}

bool span_covers(const struct spans *spans, uint64_t base, uint64_t bytes)
{
	uint64_t end = base + bytes;

	while (base < end) {
		const struct span *span = span_from(spans, base);

		if (!span || span->base != base || span->bytes > end - base)
			return false;
		base += span->bytes;
	}
	return base == end;
}
