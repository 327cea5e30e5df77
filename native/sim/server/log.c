/* server.log is written by the control daemon: we write to its fifo. */
#include "server.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void log_as(const char *who, const char *format, ...)
{
	static int fifo = -1;
	char path[300], text[400], line[512];
	va_list list;

	if (fifo < 0) {
		snprintf(path, sizeof(path), "%s/log", link_pipe_directory());
		fifo = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	}
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	log_put(fifo, line, log_format(line, sizeof(line), who, text));
}
