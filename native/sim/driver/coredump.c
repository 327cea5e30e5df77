/* CUDA core dumps of the GPU: a client writes one when an SM exception ends it, guilty or not, if it was asked to.
 *
 * Times as measured under MPS (docs/simulator.md).  Nothing is written for faults of the MMU: what of those is not known.
 */
#include "coredump.h"
#include "driver.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CULPRIT_HEARS_MS = 375 };

static const struct coredump_exception exceptions[FAULT_CLASSES] = { /* without a kernel: no dump */
	[FAULT_TRAP] = { "trap", 0, false, false },
	[FAULT_DUMPED_ASSERT] = { "assert_fail", 12, true, false },
	[FAULT_ILLEGAL] = { "illegal_instruction", 4, true, true },
	[FAULT_MISALIGNED] = { "misaligned", 6, true, true },
	[FAULT_STACK] = { "stack_overflow", 5, true, true },
};

/* Protects the rest. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t written = PTHREAD_COND_INITIALIZER;
static const struct coredump_exception *mine; /* we did it */
static bool is_begun, is_complete;
static uint64_t began_ns;

bool coredump_is_asked(void)
{
	const char *asked = getenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION");

	return asked && strcmp(asked, "1") == 0;
}

static const struct coredump_exception *wanted(enum fault_class fault)
{
	if (!coredump_is_asked() || fault >= FAULT_CLASSES || !exceptions[fault].kernel)
		return NULL;
	return &exceptions[fault];
}

/* %h, %p and %t are host, pid and time. */
static void name_file(char *name, size_t size)
{
	const char *at = getenv("CUDA_COREDUMP_FILE");
	char host[65] = "";
	size_t used = 0;

	gethostname(host, sizeof(host) - 1);
	for (at = at ? at : "core_%t_%h_%p.nvcudmp"; *at && used + 80 < size; at++) {
		char *end_of_name = name + used;

		if (at[0] == '%' && at[1] == 'h')
			used += (size_t)snprintf(end_of_name, 80, "%s", host);
		else if (at[0] == '%' && at[1] == 'p')
			used += (size_t)snprintf(end_of_name, 80, "%d", (int)driver.pid);
		else if (at[0] == '%' && at[1] == 't')
			used += (size_t)snprintf(end_of_name, 80, "%lld", (long long)time(NULL));
		else
			*end_of_name = *at, used++;
		at += at[0] == '%' && at[1] && strchr("hpt", at[1]);
	}
	name[used] = '\0';
}

static void write_dump(const struct coredump_exception *exception, bool is_culprit)
{
	unsigned char *data = malloc(COREDUMP_BYTES);
	size_t size = data ? coredump_make(data, exception, driver.pid, is_culprit) : 0;
	char name[512];
	int fd;

	name_file(name, sizeof(name));
	fd = size ? open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
	if (fd >= 0) {
		(void)!write(fd, data, size); /* a full disk loses it */
		close(fd);
	}
	free(data);
}

static void sleep_between(unsigned least_ms, unsigned most_ms)
{
	unsigned ms = least_ms + (unsigned)(machine_now_ns() / 1000 % (most_ms - least_ms + 1));

	machine_sleep_ms(machine_delay_ms(ms, (ms + 9) / 10));
}

static void *write_as_culprit(void *unused)
{
	(void)unused;
	sleep_between(48, 126);
	write_dump(mine, true);
	pthread_mutex_lock(&lock);
	is_complete = true;
	pthread_cond_broadcast(&written);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Before the fault is reported to the server, which answers within milliseconds. */
void coredump_culprit(enum fault_class fault)
{
	const struct coredump_exception *exception = wanted(fault);
	sigset_t all, before;
	pthread_t thread;

	pthread_mutex_lock(&lock);
	if (exception && !is_begun) {
		is_begun = true;
		mine = exception;
		began_ns = machine_now_ns();
		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, &before);
		is_complete = pthread_create(&thread, NULL, write_as_culprit, NULL) != 0;
		if (!is_complete)
			pthread_detach(thread);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&lock);
}

/* Before the program sees its error, which waits for the dump.  The listener's thread. */
void coredump_heard(enum fault_class fault)
{
	const struct coredump_exception *exception = wanted(fault);
	bool is_innocent;

	if (!exception)
		return;
	pthread_mutex_lock(&lock);
	is_innocent = !is_begun;
	is_begun = true;
	while (mine && !is_complete)
		pthread_cond_wait(&written, &lock); /* its thread only sleeps and writes */
	pthread_mutex_unlock(&lock);
	if (is_innocent) {
		sleep_between(5, 30); /* complete 50 to 91 ms after the launch, of which most have passed */
		write_dump(exception, false);
	} else if (mine) {
		uint64_t hears_ns = began_ns + machine_delay_ms(CULPRIT_HEARS_MS, CULPRIT_HEARS_MS / 10) * 1000000ull;
		uint64_t now = machine_now_ns();

		if (now < hears_ns)
			machine_sleep_ms((unsigned)((hears_ns - now + 999999u) / 1000000u));
	}
}
