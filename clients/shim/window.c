/* See window.h. A guard that cannot be mapped does not fail the program's call: it is logged once, and the shield is missing
 * there. */
#include "window.h"

#include "guard.h"

static void lay(struct window *window, uint64_t base, uint64_t bytes)
{
	bool is_managed = window->shield == SHIELD_REPORT;
	int rc = ledger_add(&window->ledger, base, bytes, LEDGER_GUARD, is_managed);

	if (rc == 0)
		rc = guard_lay(&window->uuid, base, bytes, is_managed);
	if (rc == 0)
		return;
	ledger_remove(&window->ledger, base);
	window->shield = SHIELD_OFF;
	shim_log("no shield any more on GPU %d: a guard of %llu bytes at 0x%llx: %s", window->device, (unsigned long long)bytes,
		 (unsigned long long)base, guard_why(rc));
}

/* Guards in all holes of [from, to). */
static void guard(struct window *window, uint64_t from, uint64_t to)
{
	uint64_t base, bytes;

	from = from < window->base ? window->base : from;
	to = to > window->end ? window->end : to;
	while (window->shield != SHIELD_OFF && ledger_hole(&window->ledger, from, to, &base, &bytes)) {
		lay(window, base, bytes);
		from = base + bytes;
	}
}

/* mpsd is to know the window before an access can be seen there.  Where it does not watch us, guards only absorb. */
static enum shield choose_shield(const struct window *window)
{
	const struct settings *wish = settings();

	if (wish->shield != SHIELD_REPORT || watched_from_outside(window->base, window->end - window->base))
		return wish->shield;
	shim_log("mpsd does not see accesses to the guards of GPU %d: they absorb, and nothing is reported", window->device);
	return SHIELD_ABSORB;
}

void window_begin(struct window *window, CUdevice device, uint64_t base, uint64_t bytes)
{
	window->device = device;
	window->base = base;
	window->end = base + bytes;
	window->shield = choose_shield(window);
	window->band = window->shield == SHIELD_OFF ? 0 : settings()->band_bytes;
}

int window_lift(struct window *window, uint64_t from, uint64_t to)
{
	struct ledger_range *range;
	int rc = 0;

	while (rc == 0 && (range = ledger_next(&window->ledger, from)) && range->base < to) {
		uint64_t base = range->base, end = base + range->bytes;

		if (range->kind == LEDGER_STUCK)
			return -EBUSY;
		if (range->kind == LEDGER_MEMORY) { /* a neighbour: the caller's range may include its edges */
			from = end;
			continue;
		}
		rc = guard_lift(base, range->bytes, range->note);
		if (rc < 0) {
			range->kind = LEDGER_STUCK;
			shim_log("a guard at 0x%llx cannot be lifted: %s", (unsigned long long)base, guard_why(rc));
			return -EBUSY;
		}
		ledger_remove(&window->ledger, base);
		window->lifted = window->lifted < window->lifted_end && window->lifted < base ? window->lifted : base;
		window->lifted_end = end > window->lifted_end ? end : window->lifted_end;
		from = end;
	}
	return 0;
}

void window_again(struct window *window)
{
	if (window->lifted < window->lifted_end)
		guard(window, window->lifted, window->lifted_end);
	window->lifted = window->lifted_end = 0;
}

static void guard_around(struct window *window, uint64_t base, uint64_t bytes)
{
	guard(window, base > window->base + window->band ? base - window->band : window->base, base);
	guard(window, base + bytes, base + bytes + window->band);
}

int window_know(struct window *window, uint64_t base, uint64_t bytes)
{
	return ledger_add(&window->ledger, base, bytes, LEDGER_MEMORY, 0);
}

void window_guard_all(struct window *window)
{
	struct ledger_range *range;

	for (uint64_t at = window->base; (range = ledger_next(&window->ledger, at));) {
		struct ledger_range here = *range; /* laying moves the array */

		at = here.base + here.bytes;
		if (here.kind == LEDGER_MEMORY)
			guard_around(window, here.base, here.bytes);
	}
}

int window_put(struct window *window, uint64_t base, uint64_t bytes, uint64_t note)
{
	int rc = ledger_add(&window->ledger, base, bytes, LEDGER_MEMORY, note);

	if (rc < 0)
		return rc;
	guard_around(window, base, bytes);
	window_again(window);
	return 0;
}

void window_freed(struct window *window, uint64_t base)
{
	struct ledger_range *range = ledger_find(&window->ledger, base);
	uint64_t bytes;

	if (!range || range->base != base)
		return;
	bytes = range->bytes;
	ledger_remove(&window->ledger, base);
	guard(window, base, base + bytes);
}

void window_bare(struct window *window)
{
	window_lift(window, window->base, window->end);
	window->lifted = window->lifted_end = 0;
}
