/* SPDX-License-Identifier: MIT */
/* mpsd/code/state.h: the writer of a forward state: its memory. */
#ifndef MPSD_CODE_STATE_H
#define MPSD_CODE_STATE_H

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3; some systems insist */
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif

struct mpsd_state {
	struct mpsd_state_control *control; /* shared; a child after fork does not have it */
	uint64_t *slots;                    /* shared, behind it */
	const uint32_t *is_ours;            /* a page that is zero in a child after fork */
	uint64_t *record;                   /* this and what follows is the writer's own memory, one mapping */
	uint64_t *digests;                  /* of each line as it is in each slot */
	uint64_t *stale;                    /* for each slot, a bit for each line that is older there than in the record */
	uint64_t sum[MPSD_STATE_SLOTS];     /* of a slot's digests */
	uint64_t salt;
	struct mpsd_state_stamp published;
	uint64_t record_bytes;
	uint64_t lines;
	uint64_t groups; /* of 64 lines */
	size_t own_bytes;
	size_t page_bytes;
	int fd;
};

static inline void *mpsd_state_anonymous(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* A sealed descriptor, the shared part of which is mapped at *at: that mapping is the last that can be written.  Or -errno. */
static inline int mpsd_state_make(const struct mpsd_state_head *head, size_t shared_bytes, void **at)
{
	int fd, rc, seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (!mpsd_file_fits(MPSD_STATE_CONTROL_AT + shared_bytes))
		return -EFBIG;
	fd = memfd_create("mpsd-state", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("mpsd-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	*at = MAP_FAILED;
	errno = 0;
	if (ftruncate(fd, (off_t)(MPSD_STATE_CONTROL_AT + shared_bytes)) < 0)
		goto failed;
	if (pwrite(fd, head, sizeof(*head), 0) != (ssize_t)sizeof(*head))
		goto failed;
	*at = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, MPSD_STATE_CONTROL_AT);
	if (*at == MAP_FAILED || madvise(*at, shared_bytes, MADV_DONTFORK) < 0)
		goto failed;
	if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) < 0 && (errno != EINVAL || fcntl(fd, F_ADD_SEALS, seals) < 0))
		goto failed;
	return fd;
failed:
	rc = errno ? -errno : -EIO;
	if (*at != MAP_FAILED)
		munmap(*at, shared_bytes);
	close(fd);
	return rc;
}

/* Allocate the writer's memory. 0 or -errno; on failure mpsd_state_close frees the part that was allocated. */
static inline int mpsd_state_equip(struct mpsd_state *state)
{
	size_t bits = (size_t)state->groups * MPSD_STATE_SLOTS * sizeof(uint64_t);
	uint32_t *page = (uint32_t *)mpsd_state_anonymous(state->page_bytes);

	state->is_ours = page;
	if (!page)
		return -ENOMEM;
	if (madvise(page, state->page_bytes, MADV_WIPEONFORK) < 0)
		return -errno;
	*page = 1;
	state->own_bytes = (size_t)state->lines * (MPSD_STATE_LINE + MPSD_STATE_SLOTS * sizeof(uint64_t)) + bits;
	state->record = (uint64_t *)mpsd_state_anonymous(state->own_bytes);
	if (!state->record)
		return -ENOMEM;
	state->digests = state->record + state->lines * MPSD_STATE_WORDS;
	state->stale = state->digests + state->lines * MPSD_STATE_SLOTS;
	return 0;
}

MPSD_API int mpsd_state_create(const char *schema, uint64_t record_bytes, uint64_t generation, struct mpsd_state **out)
{
	struct mpsd_state_head head;
	struct mpsd_state *state;
	size_t length = schema ? strlen(schema) : 0;
	void *shared = NULL;
	int rc;

	if (!record_bytes || record_bytes > MPSD_STATE_MOST_BYTES || !generation || length >= MPSD_STATE_SCHEMA_ROOM)
		return -EINVAL;
	memset(&head, 0, sizeof(head));
	head.major = MPSD_STATE_MAJOR;
	head.minor = MPSD_STATE_MINOR;
	head.magic = MPSD_STATE_MAGIC;
	head.generation = generation;
	head.schema_hash = mpsd_state_hash(schema ? schema : "", length);
	head.record_bytes = (uint32_t)record_bytes;
	head.schema_bytes = (uint32_t)length;
	if (length)
		memcpy(head.schema, schema, length);
	state = (struct mpsd_state *)calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->fd = -1;
	state->salt = mpsd_state_salt(&head);
	state->published.generation = generation;
	state->record_bytes = record_bytes;
	state->lines = mpsd_state_lines(record_bytes);
	state->groups = (state->lines + 63) / 64;
	state->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	rc = mpsd_state_equip(state);
	if (rc == 0)
		rc = mpsd_state_make(&head, mpsd_state_shared_bytes(state->lines), &shared);
	if (rc < 0) {
		mpsd_state_close(state);
		return rc;
	}
	state->fd = rc;
	state->control = (struct mpsd_state_control *)shared;
	state->slots = (uint64_t *)shared + sizeof(struct mpsd_state_control) / sizeof(uint64_t);
	mpsd_state_changed(state, 0, record_bytes);
	*out = state;
	return 0;
}

MPSD_API void mpsd_state_close(struct mpsd_state *state)
{
	if (!state)
		return;
	if (state->control && *state->is_ours) /* in a child something else may lie there */
		munmap(state->control, mpsd_state_shared_bytes(state->lines));
	if (state->record)
		munmap(state->record, state->own_bytes);
	if (state->is_ours)
		munmap((void *)(uintptr_t)state->is_ours, state->page_bytes);
	if (state->fd >= 0)
		close(state->fd);
	free(state);
}

MPSD_API int mpsd_state_fd(const struct mpsd_state *state)
{
	return state->fd;
}

MPSD_API void *mpsd_state_record(const struct mpsd_state *state)
{
	return state->record;
}

MPSD_API uint64_t mpsd_state_bytes(const struct mpsd_state *state)
{
	return state->record_bytes;
}

MPSD_API struct mpsd_state_stamp mpsd_state_published(const struct mpsd_state *state)
{
	return state->published;
}

#endif
