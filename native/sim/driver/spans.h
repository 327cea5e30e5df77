/* Address ranges that do not overlap, in order: a balanced tree, so that with a hundred thousand ranges one costs no more than
 * with ten.
 *
 * A struct span is the first member of the kept object; the object's owner allocates, frees and locks it. */
#ifndef MPSD_SIM_SPANS_H
#define MPSD_SIM_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
	uint64_t base, bytes; /* not 0; base + bytes does not wrap */
	struct span *below, *above;
	uint32_t weight;
};

struct spans {
	struct span *root;
	uint32_t chance; /* the last weight that was drawn */
};

void span_add(struct spans *spans, struct span *span); /* overlaps none that is there */
void span_take(struct spans *spans, struct span *span); /* is there; it stays its owner's */
struct span *span_from(const struct spans *spans, uint64_t address); /* the lowest that ends behind it; NULL: none */
struct span *span_at(const struct spans *spans, uint64_t address);   /* the one that it is in; NULL: none */
struct span *span_next(const struct spans *spans, const struct span *span);
bool span_meets(const struct spans *spans, uint64_t base, uint64_t bytes);  /* whether any part of it is taken */
bool span_covers(const struct spans *spans, uint64_t base, uint64_t bytes); /* whether whole ones, end to end, make it up */

#endif
