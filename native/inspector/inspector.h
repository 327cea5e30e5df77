/* SPDX-License-Identifier: MIT */
/* Declarations shared by the files of mpsd-inspector. All code in facts.c, identity.c, texts.c, cgroups.c
 * and descriptors.c may wait, and be killed. */
#ifndef INSPECTOR_H
#define INSPECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "../include/mpsd_inspector.h"

#define REQUESTS_FD 3
#ifndef PROC
#define PROC "/proc" /* tests build with another directory */
#endif
enum { MOST_PASSED = 4 };

/* A request with checked lengths. Borrows the datagram. */
struct question {
	struct mpsd_inspector_request head;
	const struct mpsd_inspector_pair *pairs; /* head.pairs of them */
	const char *words;                       /* each ended by NUL */
	size_t words_size;
	int passed[MOST_PASSED]; /* descriptors that came after the answer's socket: a pidfd, or those of a program; -1: none */
};

/* The child's reply. Owns the descriptors in `taken`, until the child exits. */
struct reply {
	struct mpsd_inspector_answer head;
	char payload[MPSD_INSPECTOR_DATAGRAM - sizeof(struct mpsd_inspector_answer)];
	size_t size;
	int taken[MPSD_INSPECTOR_TAKEN];
	int taken_count;
	int frozen; /* cgroup.freeze of a cgroup that is to be thawed unless mpsd gets the answer; -1: none */
};

/* Whether a request is well formed; fills *out, which borrows `datagram`. */
int question_parse(const char *datagram, size_t size, struct question *out);

/* One for each op.  0, or -errno; fills *out. */
int facts_read(const struct question *question, struct reply *out);
int maps_read(const struct question *question, struct reply *out);
int descriptors_compare(const struct question *question, struct reply *out);
int descriptors_take(const struct question *question, struct reply *out);
int descriptors_find(const struct question *question, struct reply *out);
int stat_read(const struct question *question, struct reply *out);
int file_read(const struct question *question, struct reply *out);
int spaces_read(const struct question *question, struct reply *out);
int text_read(const struct question *question, struct reply *out);
int children_read(const struct question *question, struct reply *out);
int threads_read(const struct question *question, struct reply *out);

/* Look up what SPACES needs of this process itself, which a later user could make wait. */
void spaces_prepare(void);

int cgroup_read(const struct question *question, struct reply *out);
int frozen_read(const struct question *question, struct reply *out);
int freezer_read(const struct question *question, struct reply *out);
int freeze_write(const struct question *question, struct reply *out);
int thaw_write(const struct question *question, struct reply *out);
int processes_read(const struct question *question, struct reply *out);

/* Thaw what is frozen by the reply. */
void freeze_undo(const struct reply *reply);
int paths_read(const struct question *question, struct reply *out);

/* starter.c: start a child of mpsd's, which answers on `end`.  0, or -errno; `serve` serves REQUESTS_FD, and returns. */
int reader_start(int end, void (*serve)(void));
int program_start(const struct question *question, int end);

/* Answer without a payload.  False if mpsd no longer waits for it. */
bool send_status(int end, int status, uint32_t count);

/* Up to `size` bytes of /proc/PID/`name`.  How many, or -errno. */
ssize_t read_file(uint32_t pid, const char *name, char *out, size_t size);

/* Call `each` for the first `most` threads, until it returns another value than 0.  That value, or -errno. */
int for_threads(uint32_t pid, int most, int (*each)(uint32_t pid, const char *thread, void *out), void *out);

/* Whether the thread with this stat has ended or is ending.  *threads: how many its process has; 0 if the stat is not whole. */
bool stat_is_over(const char *stat, long *threads);

/* Whether `text` is one of the question's words. */
int is_word(const struct question *question, const char *text, size_t size);

#endif
