/* Failures on request: MPSD_SIM_CONTROL_FAULT="WHAT@WHERE[=MS] ...", and the vendor's own weakness.
 *
 * WHAT: hang, crash, slow (with =MS); refuse (start, accept); garbage (commands).  WHERE: start,
 * accept, attach, a command's name, or * for every command.  Prose: docs/simulator.md, "Mishaps".
 */
#include "daemon.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_command(const char *where)
{
	return strcmp(where, "start") != 0 && strcmp(where, "accept") != 0 && strcmp(where, "attach") != 0;
}

static bool matches(const char *word, const char *what, const char *where, unsigned *ms)
{
	const char *at = strchr(word, '@');
	const char *end = at ? at + strcspn(at, "= ") : NULL;
	size_t length;

	if (!at || (size_t)(at - word) != strlen(what) || strncmp(word, what, strlen(what)) != 0)
		return false;
	length = (size_t)(end - at) - 1;
	if (!(length == 1 && at[1] == '*' && is_command(where)) && (length != strlen(where) || strncmp(at + 1, where, length) != 0))
		return false;
	if (ms)
		*ms = *end == '=' ? (unsigned)strtoul(end + 1, NULL, 10) : 0;
	return true;
}

bool mishap(const char *what, const char *where, unsigned *ms)
{
	const char *word = getenv("MPSD_SIM_CONTROL_FAULT");

	while (word && *word) {
		if (matches(word, what, where, ms))
			return true;
		word += strcspn(word, " ");
		word += strspn(word, " ");
	}
	return false;
}

void mishap_at(const char *where)
{
	unsigned ms;

	if (mishap("slow", where, &ms))
		machine_sleep_ms(ms);
	if (mishap("crash", where, NULL))
		kill(getpid(), SIGKILL);
	while (mishap("hang", where, NULL))
		pause(); /* for ever: that is what was asked for */
}

static uint32_t roll(void)
{
	static uint32_t seed;

	if (!seed)
		seed = (uint32_t)machine_knob("MPSD_SIM_SEED", (unsigned long)getpid() * 2654435761u) | 1;
	seed ^= seed << 13;
	seed ^= seed >> 17;
	seed ^= seed << 5;
	return seed;
}

/* Driver 580 loses between a quarter and one in seven of the commands that overlap with others'. */
bool mishap_overlap(unsigned connected)
{
	return connected > 1 && roll() % 1000 < machine_knob("MPSD_SIM_OVERLAP_PERMILLE", 150);
}
