/* Whether the shim acts: not if switched off, not in calls from the shim itself, not in a forked child of a process that used
 * CUDA. */
#include "shim.h"

enum { UNKNOWN, ON, OFF };

__thread int gate_depth;
static int mode;
static bool has_begun;

bool gate_is_off(void)
{
	int now = __atomic_load_n(&mode, __ATOMIC_RELAXED);
	const char *wish;

	if (now == UNKNOWN) {
		wish = secure_getenv("MPSD_SHIM");
		now = wish && strcmp(wish, "off") == 0 ? OFF : ON;
		__atomic_store_n(&mode, now, __ATOMIC_RELAXED);
	}
	return now == OFF;
}

/* Runs in the child, as its only thread. A process that has used CUDA cannot use it after fork, and the shim's locks may be
 * held by threads that the child does not have. If CUDA has not begun, since cuInit still waits for a lease or was refused, the
 * child is a process like any other: it takes its own lease, and does not run without one. */
static void after_fork(void)
{
	if (gate_has_begun()) {
		__atomic_store_n(&mode, OFF, __ATOMIC_RELAXED);
	} else {
		init_after_fork();
		session_after_fork();
	}
	gate_depth = 0;
}

void gate_begin(void)
{
	__atomic_store_n(&has_begun, true, __ATOMIC_RELEASE);
}

bool gate_has_begun(void)
{
	return __atomic_load_n(&has_begun, __ATOMIC_ACQUIRE);
}

static void __attribute__((constructor)) begin(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}
