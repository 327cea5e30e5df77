/* SPDX-License-Identifier: MIT */
/* Quit: whether a command is `quit`, and when the daemon ends what is left.  The daemon reads the words by the same rule
 * (mpsd/commands/language/grammar.py, parse_quit).  No I/O. */
#include "control.h"

#include <string.h>

#define MOST_SECONDS (366 * 24 * 3600) /* the daemon takes more for as much */

static bool is_blank(char byte)
{
	return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* The next word from *at on; its length, 0 at the end. */
static size_t next_word(const char *command, size_t length, size_t *at, const char **word)
{
	size_t end;

	while (*at < length && is_blank(command[*at]))
		++*at;
	for (end = *at; end < length && !is_blank(command[end]); end++)
		;
	*word = command + *at;
	length = end - *at;
	*at = end;
	return length;
}

/* The leading number of a word; -1: it has none, or it is negative. */
static int64_t leading_seconds(const char *word, size_t length)
{
	size_t at = length > 0 && (word[0] == '+' || word[0] == '-');
	int64_t seconds = -1;

	for (; at < length && word[at] >= '0' && word[at] <= '9'; at++) {
		seconds = (seconds < 0 ? 0 : seconds * 10) + (word[at] - '0');
		if (seconds > MOST_SECONDS)
			seconds = MOST_SECONDS; /* before it could overflow */
	}
	return length > 0 && word[0] == '-' && seconds > 0 ? -1 : seconds;
}

/* *seconds: after which the daemon ends the work that is left; -1: it waits for its clients. */
bool quit_parse(const char *command, size_t length, int64_t *seconds)
{
	const char *word;
	size_t at = 0, size = next_word(command, length, &at, &word);

	*seconds = -1;
	if (size != 4 || memcmp(word, "quit", 4) != 0)
		return false;
	size = next_word(command, length, &at, &word);
	if (size == 2 && memcmp(word, "-t", 2) == 0) {
		size = next_word(command, length, &at, &word);
		*seconds = leading_seconds(word, size);
	}
	return true;
}
