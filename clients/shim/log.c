/* Append one line to the file MPSD_LOG. The file is opened for each line, since the program could close a descriptor that stays
 * open. */
#include "shim.h"

static void put(const char *path, const char *line, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600); /* does not block on a FIFO */

	if (fd < 0)
		return;
	if (write(fd, line, bytes) < 0)
		errno = 0; /* errors are ignored: the shim may not print */
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
