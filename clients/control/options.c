/* SPDX-License-Identifier: MIT */
/* Options: the words that the command line may hold. A table; the first word that is not an option begins a command. */
#include "control.h"

#include <string.h>

enum meaning { HELP, VERSION, DAEMON, FOREGROUND, MULTIUSER, READY_DEVICES, STATIC_PARTITIONING, NO_MEANING };

static const struct {
	char letter;
	const char *name; /* taken with one dash or two: callers write -multiuser-server and --multiuser-server */
	enum meaning meaning;
} known[] = {
	{ 'h', "help", HELP },
	{ 'v', "version", VERSION },
	{ 'd', "daemon", DAEMON },
	{ 'f', "forground", FOREGROUND }, /* the vendor's spelling */
	{ 'f', "foreground", FOREGROUND },
	{ 'M', "multiuser-server", MULTIUSER },
	{ 'q', "ready-devices", READY_DEVICES },
	{ 'S', "static-partitioning", STATIC_PARTITIONING },
};

#define KNOWN_COUNT (sizeof(known) / sizeof(known[0]))

static enum meaning by_name(const char *name)
{
	for (size_t i = 0; i < KNOWN_COUNT; i++)
		if (strcmp(known[i].name, name) == 0)
			return known[i].meaning;
	return NO_MEANING;
}

static enum meaning by_letter(char letter)
{
	for (size_t i = 0; i < KNOWN_COUNT; i++)
		if (known[i].letter == letter)
			return known[i].meaning;
	return NO_MEANING;
}

static void apply(struct options *out, enum meaning meaning, const char *word)
{
	switch (meaning) {
	case HELP:
		out->mode = OPTIONS_HELP;
		break;
	case VERSION:
		out->mode = OPTIONS_VERSION;
		break;
	case DAEMON:
		out->mode = OPTIONS_BACKGROUND;
		break;
	case FOREGROUND:
		out->mode = OPTIONS_FOREGROUND;
		break;
	case MULTIUSER:
		out->multiuser_server = true;
		break;
	case READY_DEVICES:
		out->ready_devices = true;
		break;
	case STATIC_PARTITIONING:
		out->static_partitioning = true;
		break;
	case NO_MEANING:
		out->mode = OPTIONS_UNKNOWN;
		out->unknown = word;
		break;
	}
}

/* `word` begins with a dash and is longer than it: one name, or letters together (-dM). */
static void take_option(struct options *out, const char *word)
{
	bool two_dashes = word[1] == '-';
	enum meaning meaning = by_name(word + (two_dashes ? 2 : 1));

	if (two_dashes || meaning != NO_MEANING) {
		apply(out, meaning, word);
		return;
	}
	for (const char *letter = word + 1; *letter; letter++)
		if (by_letter(*letter) == NO_MEANING) {
			apply(out, NO_MEANING, word);
			return;
		}
	for (const char *letter = word + 1; *letter; letter++)
		apply(out, by_letter(*letter), word);
}

/* With -d or -f, a word that is not an option is ignored, as the vendor's program does. */
static bool starts_daemon(const struct options *out)
{
	return out->mode == OPTIONS_BACKGROUND || out->mode == OPTIONS_FOREGROUND;
}

/* Fills *out, which then borrows from argv.  Help, the version and an unknown word end the reading. */
void options_parse(int argc, char **argv, struct options *out)
{
	memset(out, 0, sizeof(*out));
	for (int i = 1; i < argc; i++) {
		bool is_end = strcmp(argv[i], "--") == 0;

		if (!is_end && argv[i][0] == '-' && argv[i][1]) {
			take_option(out, argv[i]);
			if (out->mode >= OPTIONS_HELP)
				return;
		} else if (starts_daemon(out)) {
			if (is_end)
				return;
		} else {
			out->command = argv + i + (is_end ? 1 : 0);
			if (!*out->command)
				out->command = NULL;
			return;
		}
	}
}
