/* SPDX-License-Identifier: MIT */
/* mpsd/code/state_reader.h: the reader of a forward state.  Nothing it reads is believed before it is proved. */
#ifndef MPSD_CODE_STATE_READER_H
#define MPSD_CODE_STATE_READER_H

enum { MPSD_STATE_TRIES = 64 }; /* each ends because the writer went on; the end of them is -EAGAIN */

struct mpsd_state_reader {
	const struct mpsd_state_control *control; /* shared, read-only */
	const uint64_t *slots;                    /* shared, behind it */
	uint64_t *record;                         /* read last */
	uint64_t *spare;                          /* for the next one */
	uint64_t salt;
	uint64_t lines;
	struct mpsd_state_head head; /* as it was when it was checked */
};

/* Whether the head is one.  0 or -errno. */
static inline int mpsd_state_check_head(const struct mpsd_state_head *head)
{
	if (head->magic != MPSD_STATE_MAGIC)
		return -EPROTO;
	if (head->major != MPSD_STATE_MAJOR)
		return -EPROTONOSUPPORT;
	if (!head->generation || !head->record_bytes || head->record_bytes > MPSD_STATE_MOST_BYTES ||
	    head->schema_bytes >= MPSD_STATE_SCHEMA_ROOM)
		return -EPROTO;
	for (unsigned i = 0; i < sizeof(head->reserved) / sizeof(head->reserved[0]); i++)
		if (head->reserved[i])
			return -EPROTO;
	for (uint32_t i = 0; i < MPSD_STATE_SCHEMA_ROOM; i++) /* text as far as it goes, then NUL */
		if (!head->schema[i] != (i >= head->schema_bytes))
			return -EPROTO;
	return mpsd_state_hash(head->schema, head->schema_bytes) == head->schema_hash ? 0 : -EPROTO;
}

/* A memfd on shared memory (one of huge pages could still give SIGBUS) that stays as long as it is.  0 or -errno. */
static inline int mpsd_state_check_file(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs system;

	if (seals < 0)
		return errno == EBADF ? -EBADF : -EPERM;
	if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return -EPERM;
	if (fstatfs(fd, &system) < 0)
		return -errno;
	return system.f_type == 0x01021994 ? 0 : -EPERM; /* TMPFS_MAGIC */
}

/* Map the file as its checked head describes it. 0 or -errno. */
static inline int mpsd_state_map(struct mpsd_state_reader *reader, int fd)
{
	size_t record_bytes = (size_t)reader->lines * MPSD_STATE_LINE, shared_bytes = mpsd_state_shared_bytes(reader->lines);
	struct stat about;
	void *at;

	if (fstat(fd, &about) < 0)
		return -errno;
	if ((uint64_t)about.st_size != MPSD_STATE_CONTROL_AT + shared_bytes)
		return -EPROTO;
	reader->record = (uint64_t *)calloc(1, record_bytes); /* calloc'ed memory may be untouched; a record is read in time */
	reader->spare = (uint64_t *)calloc(1, record_bytes);
	if (!reader->record || !reader->spare)
		return -ENOMEM;
	memset(reader->record, 1, record_bytes);
	memset(reader->spare, 1, record_bytes);
	at = mmap(NULL, shared_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, MPSD_STATE_CONTROL_AT);
	if (at == MAP_FAILED)
		return -errno;
	reader->control = (const struct mpsd_state_control *)at;
	reader->slots = (const uint64_t *)at + sizeof(struct mpsd_state_control) / sizeof(uint64_t);
	return 0;
}

MPSD_API int mpsd_state_open(int fd, const char *schema, uint64_t least_generation, struct mpsd_state_reader **out)
{
	int rc = mpsd_state_check_file(fd);
	struct mpsd_state_reader *reader;

	if (rc < 0)
		return rc;
	reader = (struct mpsd_state_reader *)calloc(1, sizeof(*reader));
	if (!reader)
		return -ENOMEM;
	rc = -EPROTO;
	if (pread(fd, &reader->head, sizeof(reader->head), 0) == (ssize_t)sizeof(reader->head))
		rc = mpsd_state_check_head(&reader->head);
	if (rc == 0 && schema &&
	    (strlen(schema) != reader->head.schema_bytes || memcmp(schema, reader->head.schema, reader->head.schema_bytes)))
		rc = -EBADMSG;
	if (rc == 0 && reader->head.generation < least_generation)
		rc = -ESTALE;
	if (rc == 0) {
		reader->salt = mpsd_state_salt(&reader->head);
		reader->lines = mpsd_state_lines(reader->head.record_bytes);
		rc = mpsd_state_map(reader, fd);
	}
	if (rc < 0) {
		mpsd_state_reader_close(reader);
		return rc;
	}
	*out = reader;
	return 0;
}

MPSD_API void mpsd_state_reader_close(struct mpsd_state_reader *reader)
{
	if (!reader)
		return;
	if (reader->control)
		munmap((void *)(uintptr_t)reader->control, mpsd_state_shared_bytes(reader->lines));
	free(reader->record);
	free(reader->spare);
	free(reader);
}

/* All marks, and which update was complete last, if they are what an update leaves behind: else -EPROTO.  Two scans one after the
 * other that found the same were both of one moment, since marks only grow. */
static inline int mpsd_state_scan(const struct mpsd_state_reader *reader, uint64_t *marks, uint64_t *sequence)
{
	uint64_t last = 0;
	unsigned slot;

	for (slot = 0; slot < MPSD_STATE_SLOTS; slot++) {
		/* Pairs with both stores of the mark in mpsd_state_publish. */
		MPSD_STATE_LOAD(marks[slot], &reader->control->mark[slot], __ATOMIC_ACQUIRE);
		if (marks[slot] / 2 > last) /* 2n: n is complete; 2n + 1: n was, before n + 1 was begun */
			last = marks[slot] / 2;
	}
	for (slot = 0; slot < MPSD_STATE_SLOTS; slot++) {
		uint64_t age = (last - slot) % MPSD_STATE_SLOTS; /* how many updates ago it was this slot's turn */
		uint64_t whole = age < last ? 2 * (last - age) : 0;

		if (marks[slot] != whole && (age != MPSD_STATE_SLOTS - 1 || marks[slot] != 2 * last + 1))
			return -EPROTO;
	}
	*sequence = last;
	return 0;
}

/* From a slot to the reader's own memory. */
static inline uint64_t mpsd_state_read_pair(uint64_t *to, const uint64_t *from, uint64_t key, uint64_t place)
{
	MPSD_STATE_LOAD(to[0], &from[0], MPSD_STATE_LOAD_WORD);
	MPSD_STATE_LOAD(to[1], &from[1], MPSD_STATE_LOAD_WORD);
	return mpsd_state_mix(to[0] ^ key, to[1] ^ place);
}

/* The words of a record into the reader's own memory, and whether they are those of this update.  -EAGAIN: the writer has begun
 * another one there.  -EPROTO: damaged. */
static inline int mpsd_state_copy(struct mpsd_state_reader *reader, uint64_t sequence)
{
	unsigned slot = (unsigned)(sequence % MPSD_STATE_SLOTS);
	const uint64_t *from = reader->slots + slot * reader->lines * MPSD_STATE_WORDS;
	uint64_t *to = reader->spare, sum = 0, digest, mark;

	for (uint64_t line = 0; line < reader->lines; line++, from += MPSD_STATE_WORDS, to += MPSD_STATE_WORDS)
		sum += MPSD_STATE_LINE_DIGEST(mpsd_state_read_pair, to, from, mpsd_state_place(line));
	MPSD_STATE_LOAD(digest, &reader->control->digest[slot], MPSD_STATE_LOAD_WORD);
	/* If a word above is of a later update, its mark is seen below; pairs with the fence in mpsd_state_publish. */
	MPSD_STATE_FENCE(__ATOMIC_ACQUIRE);
	MPSD_STATE_LOAD(mark, &reader->control->mark[slot], __ATOMIC_RELAXED);
	if (mark != 2 * sequence)
		return -EAGAIN;
	return digest == mpsd_state_seal(sum, sequence, reader->salt) ? 0 : -EPROTO;
}

MPSD_API int mpsd_state_read(struct mpsd_state_reader *reader, const void **record, struct mpsd_state_stamp *stamp)
{
	uint64_t marks[2][MPSD_STATE_SLOTS] = {{0}}, sequence = 0;

	for (unsigned attempt = 0; attempt < MPSD_STATE_TRIES; attempt++) {
		int rc = mpsd_state_scan(reader, marks[attempt % 2], &sequence);

		if (rc == -EPROTO && attempt && !memcmp(marks[0], marks[1], sizeof(marks[0])))
			return -EPROTO;
		if (rc < 0)
			continue;
		if (!sequence)
			return -ENODATA;
		rc = mpsd_state_copy(reader, sequence);
		if (rc == -EPROTO)
			return rc;
		if (rc == 0) {
			uint64_t *spare = reader->record;

			reader->record = reader->spare;
			reader->spare = spare;
			stamp->generation = reader->head.generation;
			stamp->sequence = sequence;
			*record = reader->record;
			return 0;
		}
	}
	return -EAGAIN;
}

MPSD_API uint64_t mpsd_state_latest(const struct mpsd_state_reader *reader)
{
	uint64_t marks[MPSD_STATE_SLOTS], sequence = 0;

	for (unsigned attempt = 0; attempt < MPSD_STATE_TRIES; attempt++)
		if (mpsd_state_scan(reader, marks, &sequence) == 0)
			break;
	return sequence;
}

MPSD_API uint64_t mpsd_state_reader_bytes(const struct mpsd_state_reader *reader)
{
	return reader->head.record_bytes;
}

MPSD_API uint64_t mpsd_state_generation(const struct mpsd_state_reader *reader)
{
	return reader->head.generation;
}

MPSD_API const char *mpsd_state_schema(const struct mpsd_state_reader *reader)
{
	return reader->head.schema;
}

#endif
