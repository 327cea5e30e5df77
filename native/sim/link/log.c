/* The format of a line in control.log and server.log. */
#include "link.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

size_t log_format(char *line, size_t size, const char *who, const char *text)
{
	struct timespec now;
	struct tm local;
	char date[32];
	int length;

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local);
	length = snprintf(line, size, "[%s.%03ld %s %5d] %s\n", date, now.tv_nsec / 1000000, who, (int)getpid(), text);
	if ((size_t)length < size)
		return (size_t)length;
	line[size - 2] = '\n';
	return size - 1;
}

void log_put(int fd, const char *text, size_t length)
{
	ssize_t done = fd >= 0 ? write(fd, text, length) : 0;

	(void)done;
}
