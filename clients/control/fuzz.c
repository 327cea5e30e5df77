/* SPDX-License-Identifier: MIT */
/* Fuzz: random bytes through lines.c, in random pieces, against a second way to say the same; random
 * words through options.c.  Under sanitizers.  Usage: fuzz_front_end SECONDS [SEED]; prints the seed. */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INPUT_BYTES (4 * LINES_LIMIT)

static uint64_t state;

static uint32_t any(uint32_t below)
{
	state ^= state << 13; /* xorshift64 */
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

struct expected { /* a reading of `input` that starts anew for every line */
	const char *input;
	size_t length;
	size_t at;
	unsigned int lines;
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
	expected->lines++;
	return 0;
}

static void fuzz_lines(void)
{
	static char input[INPUT_BYTES];
	struct expected expected = { .input = input, .length = any(INPUT_BYTES) };
	struct lines lines = { 0 };
	uint32_t rarity = 1 + any(6000);

	for (size_t i = 0; i < expected.length; i++)
		input[i] = any(rarity) ? 'x' : "\n\n\r\0y"[any(5)];
	for (size_t at = 0; at < expected.length;) {
		size_t piece = 1 + any(any(2) ? 10 : INPUT_BYTES);

		if (piece > expected.length - at)
			piece = expected.length - at;
		must(lines_feed(&lines, input + at, piece, check_line, &expected) == 0, "it goes on");
		at += piece;
	}
	must(lines_finish(&lines, check_line, &expected) == 0, "it ends");
	must(expected.at == expected.length, "nothing is left over");
}

static void fuzz_options(void)
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

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 10);
	unsigned long long runs = 0;

	state = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL) * 2654435761U + 1;
	printf("seed %llu\n", (unsigned long long)state);
	fflush(stdout);
	for (; runs % 256 || time(NULL) < end; runs++) {
		fuzz_lines();
		fuzz_options();
	}
	printf("%llu inputs: nothing broke\n", runs);
	return 0;
}
