/* SPDX-License-Identifier: MIT */
/* Any bytes as a forward state's memfd, which also change while it is read: an error, or a record of the size in its
 * head. */
#include "choices.h"

static void change_a_word(void);

#define MPSD_NO_CUDA_H
#define MPSD_STATE_STEP() change_a_word()
#include <mpsd.h>

enum { MOST_RECORD_BYTES = 300, MOST_LINES = 8, MOST_READS = 3 };

static uint64_t *shared; /* as its writer has it mapped */
static size_t shared_words;

static void change_a_word(void)
{
	uint32_t word;

	if (!shared_words || !choices_left() || any(8) != 7)
		return;
	word = any(256) % (uint32_t)shared_words;
	shared[word] = any(2) ? any(8) : take_number(8);
}

/* Near to a head: with noise alone none would pass. */
static void make_head(struct mpsd_state_head *head)
{
	memset(head, 0, sizeof(*head));
	head->major = MPSD_STATE_MAJOR;
	head->magic = MPSD_STATE_MAGIC;
	head->generation = 1 + any(3);
	head->record_bytes = 1 + any(MOST_RECORD_BYTES);
	head->schema_bytes = any(64);
	take_bytes(head->schema, head->schema_bytes);
	head->schema_hash = mpsd_state_hash(head->schema, head->schema_bytes);
	for (uint32_t times = any(8) == 7 ? 1 + any(3) : 0; times; times--) {
		uint32_t at = any(2) ? any(48) : any(sizeof(*head));

		take_bytes((char *)head + at, 1 + any(sizeof(*head) - at < 8 ? (uint32_t)(sizeof(*head) - at) : 8));
	}
}

/* What a writer leaves behind after `last` updates of a record of these bytes, more or less. */
static void make_shared(const struct mpsd_state_head *head, uint64_t lines, size_t words_there)
{
	struct mpsd_state_control *control = (struct mpsd_state_control *)(void *)shared;
	uint64_t last = any(4) ? any(6) : take_number(8);

	take_bytes(shared + sizeof(*control) / 8, words_there * 8 - sizeof(*control));
	for (unsigned slot = 0; slot < MPSD_STATE_SLOTS; slot++) {
		uint64_t age = (last - slot) % MPSD_STATE_SLOTS, sequence = age < last ? last - age : 0, sum = 0;
		const uint64_t *words = shared + sizeof(*control) / 8 + slot * lines * MPSD_STATE_WORDS;
		uint64_t copy[MPSD_STATE_WORDS];

		for (uint64_t line = 0; line < lines; line++, words += MPSD_STATE_WORDS)
			sum += MPSD_STATE_LINE_DIGEST(mpsd_state_read_pair, copy, words, mpsd_state_place(line));
		control->mark[slot] = 2 * sequence;
		control->digest[slot] = mpsd_state_seal(sum, sequence, mpsd_state_salt(head));
	}
	if (any(8) == 7)
		take_bytes(control, 1 + any(32));
}

/* The descriptor; its shared part is mapped, if it has one. */
static int forge(void)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct mpsd_state_head head;
	uint64_t lines;
	size_t bytes;

	make_head(&head);
	lines = mpsd_state_lines(head.record_bytes); /* the size in a head may be larger than the file */
	lines = lines > MOST_LINES ? MOST_LINES : lines;
	bytes = mpsd_state_shared_bytes(lines);
	if (fd < 0 || ftruncate(fd, (off_t)(MPSD_STATE_CONTROL_AT + bytes)) < 0 ||
	    pwrite(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		abort();
	shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, MPSD_STATE_CONTROL_AT);
	if (shared == MAP_FAILED)
		abort();
	make_shared(&head, lines, bytes / 8);
	shared_words = bytes / 8; /* from now on they change */
	if (any(16) != 15 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		abort();
	return fd;
}

static void read_some(struct mpsd_state_reader *reader)
{
	static volatile unsigned char sum;

	for (int i = 0; i < MOST_READS; i++) {
		struct mpsd_state_stamp stamp = { 0, 0 };
		const void *record = NULL;
		int rc = mpsd_state_read(reader, &record, &stamp);

		must(rc == 0 || rc == -EPROTO || rc == -ENODATA || rc == -EAGAIN, "a result that is documented");
		must(rc == 0 || (!record && !stamp.sequence), "an error touches no output");
		must(rc < 0 || (stamp.sequence && stamp.generation == mpsd_state_generation(reader)), "a record has its stamp");
		for (size_t at = 0; rc == 0 && at < mpsd_state_reader_bytes(reader); at++)
			sum = (unsigned char)(sum + ((const unsigned char *)record)[at]);
		mpsd_state_latest(reader);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mpsd_state_reader *reader = NULL;
	uint64_t bytes;
	int fd, rc;

	choices_begin(data, size);
	fd = forge();
	bytes = shared_words * 8;
	rc = mpsd_state_open(fd, any(8) == 7 ? "a schema" : NULL, any(3), &reader);
	close(fd);
	must((rc == 0) == (reader != NULL), "an error opens nothing");
	if (rc == 0)
		read_some(reader);
	mpsd_state_reader_close(reader);
	munmap(shared, bytes);
	shared_words = 0;
	return 0;
}
