/* Append one line to the file MPSD_LOG. The file is opened for each line, since the program could close a descriptor that stays
 * open. */
#include "shim.h"

#include <signal.h>

/* A file at the program's limit (RLIMIT_FSIZE) and a pipe without a reader send a signal to the thread that writes, which would end
 * the program.  One that was pending before stays. */
static void write_quietly(int fd, const char *line, size_t bytes)
{
	const struct timespec at_once = { 0 };
	sigset_t blocked, before, pending;
	int number = 0;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGXFSZ);
	sigaddset(&blocked, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	sigpending(&pending);
	if (write(fd, line, bytes) < 0)
		number = errno == EFBIG ? SIGXFSZ : errno == EPIPE ? SIGPIPE : 0; /* other errors: the shim may not print */
	if (number && !sigismember(&pending, number)) {
		sigemptyset(&blocked);
		sigaddset(&blocked, number);
		while (sigtimedwait(&blocked, NULL, &at_once) < 0 && errno == EINTR)
			;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void put(const char *path, const char *line, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600); /* does not block on a FIFO */

	if (fd < 0)
		return;
	write_quietly(fd, line, bytes);
	close(fd);
}

void shim_log(const char *format, ...)
{
	const char *path = secure_getenv("MPSD_LOG");
	int before = errno;
	char line[1024];
	struct timespec now;
	va_list values;
	int head, body;

	if (!path || !*path)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	head = snprintf(line, sizeof(line), "%lld.%03ld %d ", (long long)now.tv_sec, now.tv_nsec / 1000000, (int)getpid());
	va_start(values, format);
	body = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, format, values);
	va_end(values);
	if (body >= 0) {
		size_t used = (size_t)head + ((size_t)body < sizeof(line) - (size_t)head - 1 ? (size_t)body : sizeof(line) - (size_t)head - 2);

		line[used++] = '\n';
		put(path, line, used);
	}
	errno = before;
}
