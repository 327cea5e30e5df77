/* window.h: addresses of one GPU that the shim has reserved, what it has put there, and the guards between.
 *
 *   |guard|  memory  |guard|  memory  |guard ...........|guard|
 *    band                               over what was freed     each as wide as the band, or as the gap
 *
 * A guard is lifted before memory comes there.  Nothing is ever laid where the ledger has memory, nor outside of the window.
 * placement.c's lock is held in all of this.
 */
#ifndef SHIM_WINDOW_H
#define SHIM_WINDOW_H

#include "shim.h"

#include "ledger.h"

struct window {
	uint64_t base, end;
	CUdevice device;
	CUuuid uuid;
	struct ledger ledger;
	enum shield shield;      /* SHIELD_OFF: the driver refused the first guard; none is laid any more */
	uint64_t band;
	uint64_t lifted, lifted_end; /* extent of the guards lifted since guard() was called; equal: none */
};

/* All but the uuid; that is there already. */
void window_begin(struct window *window, CUdevice device, uint64_t base, uint64_t bytes);
/* Makes [from, to) free of guards.  0; -EBUSY: one cannot be lifted, and nothing may be put there. */
int window_lift(struct window *window, uint64_t from, uint64_t to);
/* Record memory that came with the window. Guards are mapped when all of it is known: window_guard_all(). 0, or -errno. */
int window_know(struct window *window, uint64_t base, uint64_t bytes);
void window_guard_all(struct window *window);
/* Record new memory, and map guards around it, and where some were removed next to it. 0, or -errno: it is not recorded here,
 * and no guard is mapped. */
int window_put(struct window *window, uint64_t base, uint64_t bytes, uint64_t note);
/* The memory did not come: what was lifted is laid again. */
void window_again(struct window *window);
/* It is gone, and guarded against use after free. */
void window_freed(struct window *window, uint64_t base);
/* As before the first: where the context of the GPU has gone, and with it what guards are made of. */
void window_bare(struct window *window);

#endif
