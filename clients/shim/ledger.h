/* ledger.h: which addresses hold what: memory, or a guard.  Ranges never overlap.  No driver, no lock: its owner has one. */
#ifndef SHIM_LEDGER_H
#define SHIM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ledger_kind {
	LEDGER_MEMORY = 1, /* live: nothing may ever be laid there */
	LEDGER_GUARD = 2,  /* to be lifted before memory comes there */
	LEDGER_STUCK = 3   /* a guard that could not be lifted: nothing comes there any more */
};

struct ledger_range {
	uint64_t base;
	uint64_t bytes; /* not 0 */
	enum ledger_kind kind;
	uint64_t note; /* the owner's */
};

struct ledger {
	struct ledger_range *ranges; /* by address */
	size_t count, room;
};

/* 0; -EINVAL: no bytes, or beyond the last address; -EEXIST: something is there; -ENOMEM. */
int ledger_add(struct ledger *ledger, uint64_t base, uint64_t bytes, enum ledger_kind kind, uint64_t note);
/* 0; -ENOENT: no range begins there. */
int ledger_remove(struct ledger *ledger, uint64_t base);
/* The range that an address lies in; NULL: none.  Valid until the next change. */
struct ledger_range *ledger_find(struct ledger *ledger, uint64_t address);
/* The first range that ends beyond an address; NULL: none. */
struct ledger_range *ledger_next(struct ledger *ledger, uint64_t address);
/* The first part of [from, to) that is in no range. false: the ranges cover it. */
bool ledger_hole(struct ledger *ledger, uint64_t from, uint64_t to, uint64_t *base, uint64_t *bytes);
/* The lowest place in [from, to) for so many bytes that is `gap` bytes away from memory and from both ends, and holds only
 * guards. from, bytes and gap are multiples of the granule, and so is the place. 0: no such place. */
uint64_t ledger_place(struct ledger *ledger, uint64_t from, uint64_t to, uint64_t bytes, uint64_t gap);
void ledger_clear(struct ledger *ledger);

#endif
