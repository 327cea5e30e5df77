/* SPDX-License-Identifier: MIT */
/*
 * mpsd_poll.h: a descriptor is looked at again and again, for one that wakes its readers late: the kernel log does
 * (mpsd/faults/sources/kernel_log.py).
 */
#ifndef MPSD_POLL_H
#define MPSD_POLL_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#endif

/*
 * When `watched` can be read, or reading it would report an error, add one to `told`, an eventfd; add one again after an
 * interval or two if `watched` still can be read. Reads no data itself, so that ending its thread loses none. Returns 0 when
 * `stop` can be read, or -errno. Any thread; blocks until then; borrows all three.
 */
static int mpsd_poll(int watched, int told, int stop, int64_t interval_ns);

#ifndef MPSD_CDEF
static int mpsd_poll(int watched, int told, int stop, int64_t interval_ns)
{
	const struct timespec interval = { interval_ns / 1000000000, interval_ns % 1000000000 };
	int has_told = 0;

	for (;;) {
		struct pollfd each[] = { { .fd = stop, .events = POLLIN }, { .fd = watched, .events = POLLIN } };

		/* Check once more before sleeping, and after a timeout. The last wakeup may not have been consumed yet: then
		 * sleep. */
		if (ppoll(each, has_told ? 1 : 2, &interval, NULL) < 0 && errno != EINTR)
			return -errno;
		if (each[0].revents)
			return 0;
		has_told = each[1].revents != 0;
		if (has_told)
			eventfd_write(told, 1);
	}
}
#endif

#endif
