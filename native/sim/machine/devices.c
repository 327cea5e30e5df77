/* Which GPUs a process may see, and how many SMs a share of one is.  No I/O. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

struct machine_view machine_all(void)
{
	struct machine_state *state = machine_open();
	struct machine_view view = { 0 };

	if (state)
		for (; view.count < state->gpu_count; view.count++)
			view.gpu[view.count] = view.count;
	return view;
}

/* An ordinal, a UUID or the beginning of one. */
int machine_find_gpu(const struct machine_view *view, const char *name)
{
	struct machine_state *state = machine_open();
	char *end;
	unsigned long ordinal;

	if (strncmp(name, "GPU-", 4) == 0 && name[4]) {
		for (unsigned i = 0; i < view->count; i++)
			if (strncmp(state->gpus[view->gpu[i]].uuid, name, strlen(name)) == 0)
				return (int)i;
		return -1;
	}
	ordinal = strtoul(name, &end, 10);
	return end != name && !*end && ordinal < view->count ? (int)ordinal : -1;
}

/* The list ends at the first entry that names nothing, as CUDA's does. */
struct machine_view machine_visible(const struct machine_view *base, const char *list, enum machine_view_error *error)
{
	struct machine_view view = { 0 };
	char copy[1024], *rest = copy, *word;

	*error = MACHINE_VIEW_OK;
	if (!list)
		return *base;
	strncpy(copy, list, sizeof(copy) - 1);
	copy[sizeof(copy) - 1] = '\0';
	while ((word = strsep(&rest, ",")) && view.count < MACHINE_GPUS) {
		int index = machine_find_gpu(base, word);

		if (index < 0) {
			if (*word)
				*error = *word == 'G' ? MACHINE_VIEW_BAD_UUID : MACHINE_VIEW_BAD_ORDINAL;
			break;
		}
		view.gpu[view.count++] = base->gpu[index];
	}
	return view;
}

/* Measured on an H200: 25 % 32, 40 % 52, 50 % 66, 10 % 12, 20 % 26, 0.1 % 8. */
unsigned machine_sms(unsigned gpu, double percent)
{
	unsigned all = machine_open()->gpus[gpu].sm_count;
	unsigned share = (unsigned)(all * percent / 100.0 + 1e-9) & ~1u;

	if (percent >= 100.0)
		return all;
	return share < 8 ? 8 : share;
}
