/* control.log and server.log, or stdout in the foreground.  Others write through the fifo `log`. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_file(const struct control *control, const char *name)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/%s", control->logs, name);
	return open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
}

int log_open(struct control *control)
{
	if (control->foreground) {
		control->control_log = control->server_log = STDOUT_FILENO;
		return 0;
	}
	control->control_log = open_file(control, "control.log");
	control->server_log = open_file(control, "server.log");
	return control->control_log >= 0 && control->server_log >= 0 ? 0 : -errno;
}

void log_control(struct control *control, const char *format, ...)
{
	char text[DAEMON_LINE_CRASH * 2], line[sizeof(text) + 64];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	log_put(control->control_log, line, log_format(line, sizeof(line), "Control", text));
}

void log_lines(struct control *control, const char *text)
{
	while (*text) {
		size_t length = strcspn(text, "\n");

		if (length)
			log_control(control, "%.*s", (int)length, text);
		text += length + (text[length] == '\n');
	}
}

void log_from_fifo(struct control *control)
{
	char bytes[8192];
	ssize_t got = read(control->fifo, bytes, sizeof(bytes));

	if (got > 0)
		log_put(control->server_log, bytes, (size_t)got);
}
