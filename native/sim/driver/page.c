/* The page that a context shares with its server: for how long its kernels go on, and what they do to memory.
 *
 * The server reads it when the process has died: work that was given goes on as long as the address space is there. The server
 * can do only what the page describes, and nothing that comes after other work: a queue has an order.
 */
#include "driver.h"

#include <string.h>

enum { HELD_LOOK_NS = 1000000 };

static uint64_t needs_ns(const struct work *work)
{
	uint64_t needs = work->launch.kernel->needs_ns ? work->launch.kernel->needs_ns(work) : 0;

	return needs < LINK_ENDLESS_NS ? needs : LINK_ENDLESS_NS;
}

static const struct {
	const char *name;
	enum link_effect_kind kind;
} effects[] = { /* each on what its first parameter points to */
	{ "spin", LINK_ADD },
	{ "count_up", LINK_ADD },
	{ "tick", LINK_TICK },
	{ "fill", LINK_FILL },
};

static enum link_effect_kind kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof(effects) / sizeof(*effects); i++)
		if (strcmp(effects[i].name, name) == 0)
			return effects[i].kind;
	return LINK_NOTHING;
}

/* Return whether that is all it does to memory that others may have. Of a fill over several blocks it describes the first. */
static bool describe(const struct work *work, struct link_effect *effect)
{
	enum link_effect_kind kind = kind_of(work->launch.kernel->name);
	CUdeviceptr p = work->launch.values[0], base;
	struct address_facts facts;
	size_t bytes;

	if (kind == LINK_NOTHING || !address_range(p, &base, &bytes, &facts) || !(facts.access & ADDRESS_WRITE) || p % 8)
		return false;
	if (!facts.block)
		return true;
	effect->kind = kind;
	effect->block = facts.block;
	effect->offset = p - base;
	if (effect->kind == LINK_ADD)
		effect->value = work->launch.kernel->parameters > 1 ? 1 : (uint64_t)work->launch.grid * work->launch.block;
	if (kind != LINK_FILL)
		return true;
	effect->words = (base + bytes - p) / 8;
	effect->words = work->launch.values[1] < effect->words ? work->launch.values[1] : effect->words;
	effect->value = work->launch.values[2];
	return effect->words == work->launch.values[1];
}

void page_prepare(struct work *work)
{
	work->is_other = work->run != event_reached;
	if (!work_is_kernel(work))
		return;
	work->launch.effect = (struct link_effect){ .needs_ns = needs_ns(work) };
	work->is_other = !describe(work, &work->launch.effect);
}

static void give_kernel(CUcontext context, struct work *work)
{
	struct link_page *page = context->link.page;
	uint64_t end = page->effects_end;

	page->queued_needs_ns += work->launch.effect.needs_ns;
	work->launch.effect.given_ns = machine_now_ns();
	work->launch.effect.others = context->others;
	work->launch.is_told = end - page->first_effect < LINK_EFFECTS;
	if (!work->launch.is_told) {
		work->is_other = true; /* there is no room */
		return;
	}
	page->effects[end % LINK_EFFECTS] = work->launch.effect;
	page->effects_end = end + 1;
}

void page_given(CUcontext context, struct work *work)
{
	if (!context->link.page)
		return;
	if (work_is_kernel(work))
		give_kernel(context, work);
	context->others += work->is_other;
}

/* While a kernel runs its server can see for how long yet: dying in a long one harms the others. */
void page_started(CUcontext context, const struct work *work)
{
	struct link_page *page = context->link.page;

	if (!page)
		return;
	page->kernel_needs_ns = work->launch.effect.needs_ns;
	page->queued_needs_ns -= work->launch.effect.needs_ns;
	page->kernel_started_ns = machine_now_ns();
}

void page_ended(CUcontext context, const struct work *work)
{
	struct link_page *page = context->link.page;

	if (!page)
		return;
	page->kernel_ended_ns = machine_now_ns();
	page->kernel_started_ns = 0;
	if (work->launch.is_told)
		page->first_effect++;
}

void page_done(CUcontext context, const struct work *work)
{
	if (context->link.page && work->is_other)
		context->link.page->others_done++;
}

void page_wait(CUcontext context)
{
	struct link_page *page = context->link.page;

	while (page && page->is_held && queue_sleep(context, HELD_LOOK_NS))
		;
}
