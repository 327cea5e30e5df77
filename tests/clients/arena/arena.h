/* Shared parts of the commands of arena_client. Each is a small program on clients/c/include/mpsd.h, and reports its
 * findings. */
#ifndef MPSD_TEST_ARENA_H
#define MPSD_TEST_ARENA_H

#include "client.h"

#define MPSD_API /* one copy, in main.c */
#ifndef ARENA_CODE
#define MPSD_NO_CODE
#endif
#include "mpsd.h"

enum { ARENA_GRANULE = MPSD_GRANULE, CYCLES_PER_MS = 1755000 };

struct program {
	struct client client;
	struct mpsd_driver driver;
	struct mpsd_session *session;
	struct mpsd_arena *arena;
	const char *name; /* --arena */
	uint64_t seed;    /* --seed */
	int argc;
	char **argv;
};

struct piece { /* of a layout of this program: the place of each allocation, and its contents */
	uint64_t offset, bytes, seed;
};

struct command {
	const char *name;
	int (*run)(struct program *program); /* the exit status */
};
extern const struct command memory_commands[], work_commands[]; /* the last is nameless */

/* Options; sizes in bytes, with K, M or G behind them. */
const char *text_option(struct program *program, const char *option, const char *otherwise);
uint64_t size_option(struct program *program, const char *option, const char *otherwise);
double number_option(struct program *program, const char *option, const char *otherwise);

/* Reports a negative rc in mpsd's words, and ends the program with EXIT_WORK. */
void must(struct program *program, const char *call, int rc);
/* Opens it, and makes it first where it is not there and `capacity` is not 0. */
void open_arena(struct program *program, uint64_t capacity, enum mpsd_access access, double wait_seconds);
CUdeviceptr get_memory(struct program *program, uint64_t bytes);
/* The committed pieces; gives the array, which is of malloc; 0 where nothing was committed. */
size_t read_pieces(struct program *program, struct piece **pieces);
void commit_pieces(struct program *program, const struct piece *pieces, size_t count);

/* On the device. */
CUdeviceptr plain_word(struct program *program); /* zero, outside the arena */
uint64_t read_word(struct program *program, CUdeviceptr at);
void fill_memory(struct program *program, CUdeviceptr at, uint64_t bytes, uint64_t seed);
void check_memory(struct program *program, CUdeviceptr at, uint64_t bytes, uint64_t seed, CUdeviceptr bad);
void finish(struct program *program); /* waits for the device; ends with the error of what ran there */

#endif
