/* The page that a context shares with its server: for how long its kernels go on, and what they do to memory.
 *
 * The server reads it when the process has died: work that was given goes on as long as the address space is there.
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

/* Of a fill over several blocks the first. */
static void describe(const struct work *work, struct link_effect *effect)
{
	CUdeviceptr p = work->launch.values[0], base;
	struct address_facts facts;
	size_t bytes;

	if (!address_range(p, &base, &bytes, &facts) || !facts.block || !(facts.access & ADDRESS_WRITE) || p % 8)
		return;
	effect->kind = kind_of(work->launch.kernel->name);
	effect->block = facts.block;
	effect->offset = p - base;
	if (effect->kind == LINK_ADD)
		effect->value = work->launch.kernel->parameters > 1 ? 1 : (uint64_t)work->launch.grid * work->launch.block;
	if (effect->kind != LINK_FILL)
		return;
	effect->words = (base + bytes - p) / 8;
	effect->words = work->launch.values[1] < effect->words ? work->launch.values[1] : effect->words;
	effect->value = work->launch.values[2];
}

void page_prepare(struct work *work)
{
	if (!work_is_kernel(work))
		return;
	work->launch.effect = (struct link_effect){ .needs_ns = needs_ns(work) };
	if (kind_of(work->launch.kernel->name) != LINK_NOTHING)
		describe(work, &work->launch.effect);
}

/* Work that no longer fits is not done when its process dies. */
void page_given(CUcontext context, struct work *work)
{
	struct link_page *page = context->link.page;
	uint64_t end;

	if (!page || !work_is_kernel(work))
		return;
	page->queued_needs_ns += work->launch.effect.needs_ns;
	end = page->effects_end;
	work->launch.effect.given_ns = machine_now_ns();
	work->launch.is_told = end - page->first_effect < LINK_EFFECTS;
	if (!work->launch.is_told)
		return;
	page->effects[end % LINK_EFFECTS] = work->launch.effect;
	page->effects_end = end + 1;
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

void page_wait(CUcontext context)
{
	struct link_page *page = context->link.page;

	while (page && page->is_held && queue_sleep(context, HELD_LOOK_NS))
		;
}
