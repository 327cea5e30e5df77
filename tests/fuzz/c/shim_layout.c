/* SPDX-License-Identifier: MIT */
/* Any bytes as the layout of an arena of the shim's: what is read is written and read again as it was. */
#include "choices.h"

#include "../../../clients/shim/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct layout layout, again;
	uint64_t offset;
	size_t bytes;
	char *text;
	int rc = layout_read(&layout, (const char *)data, size);

	must(rc == 0 || (layout.count == 0 && !layout.entries), "what is refused is empty");
	if (rc < 0)
		return 0;
	text = layout_write(&layout, &bytes);
	must(text && layout_read(&again, text, bytes) == 0 && again.count == layout.count, "what was read is written");
	for (size_t i = 0; i < layout.count; i++)
		must(layout.entries[i].offset == again.entries[i].offset && layout.entries[i].bytes == again.entries[i].bytes,
		     "and read again");
	for (size_t i = 0; i < again.count; i++)
		must(layout_claim(&layout, again.entries[i].bytes, &offset) == 0, "each is claimed once");
	must(layout_waiting(&layout, &offset) < 0, "then none waits");
	free(text);
	layout_clear(&layout);
	layout_clear(&again);
	return 0;
}
