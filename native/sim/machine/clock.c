/* Time, and the numbers that the environment may change. */
#include "machine.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t machine_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

unsigned long machine_knob(const char *name, unsigned long otherwise)
{
	const char *text = getenv(name);
	char *end;
	unsigned long value;

	if (!text || !*text)
		return otherwise;
	value = strtoul(text, &end, 10);
	return *end ? otherwise : value;
}

bool machine_is_fast(void)
{
	return machine_knob("MPSD_SIM_FAST", 0) != 0;
}

unsigned machine_delay_ms(unsigned usual_ms, unsigned fast_ms)
{
	return machine_is_fast() ? fast_ms : usual_ms;
}

void machine_sleep_ms(unsigned ms)
{
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/* A chance of our own: the program's rand() is the program's. */
bool machine_is_lost(const char *knob)
{
	static _Atomic uint64_t state;
	unsigned long percent = machine_knob(knob, 0);
	uint64_t x = state;

	if (!percent)
		return false;
	if (!x)
		x = machine_knob("MPSD_SIM_SEED", (unsigned long)getpid() ^ machine_now_ns()) * 0x9e3779b97f4a7c15u | 1;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	state = x;
	return x % 100 < percent;
}
