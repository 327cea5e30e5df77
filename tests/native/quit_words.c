/* SPDX-License-Identifier: MIT */
/* Each line of stdin as clients/control/quit.c reads it: "no", or the seconds, -1 for ever.  A line's NULs are kept. */
#include "control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t length;
	int64_t seconds;

	while ((length = getline(&line, &room, stdin)) > 0)
		if (quit_parse(line, (size_t)length - 1, &seconds))
			printf("%" PRId64 "\n", seconds);
		else
			puts("no");
	free(line);
	return 0;
}
