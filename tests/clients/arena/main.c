/* arena_client COMMAND [--arena NAME] [--seed N] [--json] ...: memory in an arena of mpsd's, from a plain C program.
 *
 *   plain alloc|vmm   the cost of memory without mpsd            write    memory in an arena, filled and committed
 *   adopt             adopts it, and checks every word           reload   the same bytes from a file
 *   info              how much memory is free
 *   work              steps that continue where the last process ended       fence   counts in the arena until it is killed
 *   lend   keeps a descriptor of memory open for another process
 *
 * Exit status as of every test client; a refusal by mpsd is the event "refused", with its code and its message. */
#define ARENA_CODE
#include "arena.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1024, BLOCKS = 1024, THREADS = 256 };

static const char magic[8] = "pieces1";

const char *text_option(struct program *program, const char *option, const char *otherwise)
{
	return client_option(&program->argc, program->argv, option, otherwise);
}

double number_option(struct program *program, const char *option, const char *otherwise)
{
	return atof(text_option(program, option, otherwise));
}

uint64_t size_option(struct program *program, const char *option, const char *otherwise)
{
	char *end;
	uint64_t number = strtoull(text_option(program, option, otherwise), &end, 10);
	unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;

	return number << shift;
}

/* As a member of JSON. */
static void escape(const char *words, char *shown, size_t room)
{
	size_t at = 0;

	for (; *words && at + 2 < room; words++) {
		if (*words == '"' || *words == '\\')
			shown[at++] = '\\';
		shown[at++] = (unsigned char)*words < ' ' ? ' ' : *words;
	}
	shown[at] = 0;
}

static void refuse(struct program *program, const char *call, int rc, int code, const char *words)
{
	char shown[WORDS];

	escape(words ? words : "", shown, sizeof(shown));
	client_say(&program->client, "refused", "%s: %d (%s): %s", "\"call\": \"%s\", \"rc\": %d, \"name\": \"%s\", \"said\": \"%s\", \"code\": %d",
		   call, rc, strerror(-rc), shown, code);
	exit(EXIT_WORK);
}

void must(struct program *program, const char *call, int rc)
{
	if (rc < 0)
		refuse(program, call, rc, mpsd_error_code(program->session), mpsd_error(program->session));
}

static void open_session(struct program *program)
{
	char why[WORDS] = "";

	program->session = mpsd_session_open(NULL, "arena_client", why, sizeof(why));
	if (!program->session)
		refuse(program, "session", -ENOTCONN, 0, why);
}

void open_arena(struct program *program, uint64_t capacity, enum mpsd_access access, double wait_seconds)
{
	struct mpsd_arena_options options = { .capacity_bytes = capacity };

	options.mode = (unsigned)strtoul(text_option(program, "--mode", "600"), NULL, 8);
	must(program, "driver", mpsd_driver_load(&program->driver, NULL, NULL));
	open_session(program);
	if (capacity) {
		int rc = mpsd_arena_create(program->session, program->name, &options);

		if (rc != -EEXIST)
			must(program, "create", rc);
	}
	must(program, "open",
	     mpsd_arena_open(program->session, &program->driver, program->name, access, wait_seconds, &program->arena));
}

CUdeviceptr get_memory(struct program *program, uint64_t bytes)
{
	uint64_t address;

	must(program, "alloc", mpsd_arena_alloc(program->arena, bytes, &address));
	return (CUdeviceptr)address;
}

size_t read_pieces(struct program *program, struct piece **pieces)
{
	size_t bytes = 0, count;
	void *layout = NULL;

	*pieces = NULL;
	must(program, "layout", mpsd_arena_layout(program->arena, &layout, &bytes));
	if (!bytes) {
		free(layout);
		return 0;
	}
	count = (bytes - sizeof(magic)) / sizeof(struct piece);
	if (bytes < sizeof(magic) || memcmp(layout, magic, sizeof(magic)) != 0 || (bytes - sizeof(magic)) % sizeof(struct piece))
		refuse(program, "layout", -EBADMSG, 0, "a layout that this program did not write");
	memmove(layout, (char *)layout + sizeof(magic), bytes - sizeof(magic));
	*pieces = layout;
	return count;
}

void commit_pieces(struct program *program, const struct piece *pieces, size_t count)
{
	size_t bytes = sizeof(magic) + count * sizeof(*pieces);
	char *layout = malloc(bytes);

	if (!layout)
		refuse(program, "commit", -ENOMEM, 0, "no memory for the layout");
	memcpy(layout, magic, sizeof(magic));
	memcpy(layout + sizeof(magic), pieces, count * sizeof(*pieces));
	must(program, "commit", mpsd_arena_commit(program->arena, layout, bytes));
	free(layout);
}

CUdeviceptr plain_word(struct program *program)
{
	CUdeviceptr word;

	CLIENT_CHECK(&program->client, cuMemAlloc(&word, 4096), EXIT_WORK);
	CLIENT_CHECK(&program->client, cuMemsetD8(word, 0, 4096), EXIT_WORK);
	return word;
}

uint64_t read_word(struct program *program, CUdeviceptr at)
{
	uint64_t value = 0;

	CLIENT_CHECK(&program->client, cuMemcpyDtoH(&value, at, sizeof(value)), EXIT_WORK);
	return value;
}

void fill_memory(struct program *program, CUdeviceptr at, uint64_t bytes, uint64_t seed)
{
	uint64_t words = bytes / 8;
	void *parameters[] = { &at, &words, &seed };

	CLIENT_CHECK(&program->client, client_launch(client_kernel(&program->client, "fill"), BLOCKS, THREADS, parameters), EXIT_WORK);
}

void check_memory(struct program *program, CUdeviceptr at, uint64_t bytes, uint64_t seed, CUdeviceptr bad)
{
	uint64_t words = bytes / 8;
	void *parameters[] = { &at, &words, &seed, &bad };

	CLIENT_CHECK(&program->client, client_launch(client_kernel(&program->client, "check"), BLOCKS, THREADS, parameters), EXIT_WORK);
}

void finish(struct program *program)
{
	CLIENT_CHECK(&program->client, cuCtxSynchronize(), EXIT_WORK);
}

static const struct command *find(const struct command *list, const char *name)
{
	for (; list->name; list++)
		if (strcmp(list->name, name) == 0)
			return list;
	return NULL;
}

int main(int argc, char **argv)
{
	const struct command *lists[] = { memory_commands, work_commands }, *command = NULL;
	struct program program = { .argc = argc, .argv = argv };

	client_options(&program.client, "arena_client", &program.argc, argv);
	program.name = text_option(&program, "--arena", "test");
	program.seed = size_option(&program, "--seed", "1");
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists) && program.argc > 1 && !command; i++)
		command = find(lists[i], argv[1]);
	if (!command)
		client_usage("arena_client plain|write|adopt|reload|info|work|fence|lend [--arena NAME] ... (see its source)");
	return command->run(&program);
}
