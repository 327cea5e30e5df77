/* SPDX-License-Identifier: MIT */
/* Any bytes in any pieces as lines of commands, compared with a second implementation; and words of a command line. */
#include "choices.h"

#include "../../../clients/control/control.h"

struct expected { /* a reading of `input` that starts anew for every line */
	const char *input;
	size_t length;
	size_t at;
};

/* The line at `at`, by looking at the whole input. */
static size_t next_line(struct expected *expected, const char **text)
{
	const char *start = expected->input + expected->at;
	size_t left = expected->length - expected->at;
	const char *newline = memchr(start, '\n', left);
	size_t whole = newline ? (size_t)(newline - start) : left;
	const char *nul = memchr(start, '\0', whole);
	size_t length = nul ? (size_t)(nul - start) : whole;

	expected->at += whole + (newline ? 1 : 0);
	*text = start;
	return !nul && length > 0 && start[length - 1] == '\r' ? length - 1 : length;
}

static int check_line(void *context, const char *text, uint64_t length)
{
	struct expected *expected = context;
	const char *wanted;
	size_t wanted_length = next_line(expected, &wanted);

	must(length == wanted_length, "the length");
	must(length > LINES_LIMIT || memcmp(text, wanted, length) == 0, "the text");
	return 0;
}

/* Some of the bytes stand for many: a line may be longer than any input. */
static size_t make_input(char *input, size_t room)
{
	size_t used = 0;

	while (choices_left() && used < room) {
		char next = (char)any(256);
		size_t times = next == 'x' ? 1 + any(5000) : 1;

		for (; times && used < room; times--)
			input[used++] = next;
	}
	return used;
}

static void read_lines(void)
{
	static char input[4 * LINES_LIMIT];
	size_t pieces = 1 + any(40) * any(256);
	struct expected expected = { .input = input };
	struct lines lines = { 0 };

	expected.length = make_input(input, sizeof(input));
	for (size_t at = 0; at < expected.length;) {
		size_t left = expected.length - at, piece = pieces < left ? pieces : left;

		must(lines_feed(&lines, input + at, piece, check_line, &expected) == 0, "it goes on");
		at += piece;
	}
	must(lines_finish(&lines, check_line, &expected) == 0, "it ends");
	must(expected.at == expected.length, "nothing is left over");
}

static void read_options(void)
{
	static char *pieces[] = { "-", "--", "-d", "-f", "-M", "-h", "-dM", "-multiuser-server", "--daemon", "",
				  "quit", "-uid", "1000", "--static-partitioning", "-\n", "--=", "-S", "-q" };
	char *words[8];
	struct options options;
	int count = 1 + (int)any(6);

	words[0] = "front end";
	for (int i = 1; i < count; i++)
		words[i] = pieces[any(sizeof(pieces) / sizeof(pieces[0]))];
	words[count] = NULL;
	options_parse(count, words, &options);
	must((options.mode == OPTIONS_UNKNOWN) == (options.unknown != NULL), "an unknown word is named");
	must(!options.command || options.mode == OPTIONS_COMMANDS, "a command and a daemon exclude each other");
	must(!options.command || *options.command, "a command is not empty");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	choices_begin(data, size);
	read_options();
	read_lines();
	return 0;
}
