/* SPDX-License-Identifier: MIT */
/* Output: all text for callers, unbuffered, so that stdout and stderr keep their order. Bytes that would control a terminal are
 * written as escapes, here and in no other file. If the reader has closed its end, that is reported once: the commands still
 * have to reach the daemon. */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes everything, or notes that the output is lost. */
static void write_all(struct output *output, int fd, const char *bytes, size_t count)
{
	while (count > 0) {
		ssize_t done = write(fd, bytes, count);

		if (done >= 0) {
			bytes += done;
			count -= (size_t)done;
		} else if (errno == EAGAIN) { /* someone else made it non-blocking */
			struct pollfd room = { .fd = fd, .events = POLLOUT };

			poll(&room, 1, -1); /* forever: who reads our output may take its time */
		} else if (errno != EINTR) {
			int why = errno;

			if (!output->is_lost && fd != STDERR_FILENO)
				dprintf(STDERR_FILENO, "Cannot write to stdout: %s\n", strerror(why));
			output->is_lost = true;
			return;
		}
	}
}

/* Text from a daemon, or from a client that it quotes. Ordinary text is written unchanged, in one write. */
void output_write(struct output *output, int fd, const char *bytes, size_t count)
{
	char escape[5];

	while (count > 0) {
		size_t plain = visible_length(bytes, count);

		write_all(output, fd, bytes, plain);
		bytes += plain;
		count -= plain;
		if (count == 0)
			return;
		snprintf(escape, sizeof(escape), "\\x%02x", (unsigned char)*bytes);
		write_all(output, fd, escape, sizeof(escape) - 1);
		bytes++;
		count--;
	}
}

/* One line or two of our own; what is longer than any path and its explanation is cut. */
void output_say(struct output *output, int fd, const char *format, ...)
{
	char text[3 * INTERPRETER_PATH_BYTES + 512];
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (length > 0)
		output_write(output, fd, text, (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1);
}
