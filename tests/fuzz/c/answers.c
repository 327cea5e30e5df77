/* SPDX-License-Identifier: MIT */
/* The whole C client against damaged answers, and a driver that fails: after any failure, no resource is left behind.
 * An mpsd in the same thread replaces the kernel; time advances by itself. */
#include "choices.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

static int fuzz_socket(int domain, int type, int protocol);
static int fuzz_connect(int fd, const struct sockaddr *address, socklen_t size);
static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags);
static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags);
static int fuzz_poll(struct pollfd *events, nfds_t count, int timeout);
static int fuzz_clock_gettime(clockid_t clock, struct timespec *out);
static int fuzz_nanosleep(const struct timespec *wanted, struct timespec *left);

#define MPSD_NO_CUDA_H
#define MPSD_BATCH 3
#define socket fuzz_socket
#define connect fuzz_connect
#define sendmsg fuzz_sendmsg
#define recvmsg fuzz_recvmsg
#define poll fuzz_poll
#define clock_gettime fuzz_clock_gettime
#define nanosleep fuzz_nanosleep
#include "../../native/c_client/fake_mpsd.h"
#undef socket
#undef connect
#undef sendmsg
#undef recvmsg
#undef poll
#undef clock_gettime
#undef nanosleep

#include <fcntl.h>

enum { MOST_STEPS = 40, MOST_ANSWERS = 4 };

static struct {
	struct fake_answer answers[MOST_ANSWERS]; /* that wait to be read */
	unsigned first, count;
	int has_hung_up;
	double now;
} kernel;

static int fuzz_socket(int domain, int type, int protocol)
{
	(void)domain;
	(void)type;
	(void)protocol;
	return open("/dev/null", O_RDWR | O_CLOEXEC);
}

static void forget_answers(void)
{
	for (; kernel.count; kernel.count--, kernel.first = (kernel.first + 1) % MOST_ANSWERS)
		mpsd_close_all(kernel.answers[kernel.first].fds, kernel.answers[kernel.first].fd_count);
}

static int fuzz_connect(int fd, const struct sockaddr *address, socklen_t size)
{
	(void)fd;
	(void)address;
	(void)size;
	forget_answers();
	kernel.has_hung_up = 0;
	if (any(16) != 15)
		return 0;
	errno = any(2) ? ECONNREFUSED : EAGAIN;
	return -1;
}

/* A refusal, also of generations: then the next one is another. */
static void refuse(struct fake_answer *answer, uint64_t id)
{
	static const int codes[] = { 1, 2, 7, 13, 16, 20, 21, 22, 22, 22, 23, 99, 0 };
	int code = codes[any(sizeof(codes) / sizeof(codes[0]))];

	mpsd_pack_begin(&answer->pack, answer->bytes, sizeof(answer->bytes));
	mpsd_pack_array(&answer->pack, 4);
	mpsd_pack_uint(&answer->pack, 1);
	mpsd_pack_uint(&answer->pack, id);
	mpsd_pack_map(&answer->pack, 2);
	mpsd_pack_text(&answer->pack, "code");
	mpsd_pack_uint(&answer->pack, (uint64_t)code);
	mpsd_pack_text(&answer->pack, "message");
	mpsd_pack_text(&answer->pack, "words");
	mpsd_pack_nil(&answer->pack);
	other.generation += code == 22;
}

/* Instead of the answer: the end, with a reason; or an event. */
static void part(struct fake_answer *answer)
{
	struct mpsd_pack *pack = &answer->pack;

	mpsd_pack_begin(pack, answer->bytes, sizeof(answer->bytes));
	mpsd_pack_array(pack, 3);
	mpsd_pack_uint(pack, 2);
	mpsd_pack_text(pack, any(4) ? "goodbye" : "some.event");
	mpsd_pack_array(pack, 1);
	mpsd_pack_map(pack, 1);
	mpsd_pack_text(pack, "code");
	mpsd_pack_uint(pack, any(2) ? MPSD_PROTOCOL : MPSD_TOO_MANY);
}

/* Mostly near to valid: pure noise never gets past the first byte. */
static void spoil_it(struct fake_answer *answer, uint64_t id)
{
	unsigned char *bytes = answer->bytes;
	size_t *used = &answer->pack.used;

	switch (any(16)) {
	case 1:
		refuse(answer, id);
		break;
	case 2:
		*used = 0;
		break;
	case 3:
		*used = any((uint32_t)*used + 1);
		break;
	case 4:
		*used += any(5);
		break;
	case 5:
		if (answer->fd_count)
			close(answer->fds[--answer->fd_count]);
		break;
	case 6:
		answer->fds[answer->fd_count++] = memfd_create("more", MFD_CLOEXEC);
		break;
	case 7:
		part(answer);
		break;
	case 8:
		take_bytes(bytes, *used = any(200));
		break;
	case 9:
	case 10:
	case 11:
		for (uint32_t left = 1 + any(3); left && *used; left--)
			bytes[any((uint32_t)*used)] = (unsigned char)any(256);
		break;
	default: /* as it is */
		break;
	}
}

static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags)
{
	const struct iovec *part = &message->msg_iov[0];
	struct fake_answer *answer = &kernel.answers[(kernel.first + kernel.count) % MOST_ANSWERS];
	struct mpsd_unpack at;
	const char *method = "";
	uint32_t entries;
	uint64_t kind, id = 0;
	size_t bytes = 0;

	(void)fd;
	must(flags & MSG_NOSIGNAL, "no signal ends the client's program");
	if (kernel.has_hung_up || kernel.count == MOST_ANSWERS) {
		errno = EPIPE;
		return -1;
	}
	mpsd_unpack_begin(&at, part->iov_base, part->iov_len);
	must(!mpsd_unpack_array(&at, &entries) && !mpsd_unpack_uint(&at, &kind) && !mpsd_unpack_uint(&at, &id) &&
		     !mpsd_unpack_text(&at, &method, &bytes), "the client itself says nothing wrong");
	answer_to(answer, id, method, bytes, &at);
	spoil_it(answer, id);
	kernel.count++;
	return (ssize_t)part->iov_len;
}

static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags)
{
	struct fake_answer *answer = &kernel.answers[kernel.first];
	struct cmsghdr *head;
	size_t used;

	(void)fd;
	(void)flags;
	message->msg_flags = 0;
	message->msg_controllen = answer->fd_count && kernel.count ? message->msg_controllen : 0;
	if (!kernel.count || !answer->pack.used) {
		if (kernel.count)
			forget_answers();
		kernel.has_hung_up = 1;
		message->msg_controllen = 0;
		return 0;
	}
	used = answer->pack.used;
	memcpy(message->msg_iov[0].iov_base, answer->bytes, used);
	if (answer->fd_count) {
		head = CMSG_FIRSTHDR(message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(answer->fd_count * sizeof(int));
		memcpy(CMSG_DATA(head), answer->fds, answer->fd_count * sizeof(int));
		message->msg_controllen = CMSG_SPACE(answer->fd_count * sizeof(int));
	}
	kernel.first = (kernel.first + 1) % MOST_ANSWERS;
	kernel.count--;
	return (ssize_t)used;
}

static int fuzz_poll(struct pollfd *events, nfds_t count, int timeout)
{
	(void)events;
	(void)count;
	kernel.now += timeout > 0 ? timeout / 1000.0 : 0.001;
	return 0;
}

static int fuzz_clock_gettime(clockid_t clock, struct timespec *out)
{
	(void)clock;
	kernel.now += 0.0001;
	out->tv_sec = (time_t)kernel.now;
	out->tv_nsec = (long)((kernel.now - (double)out->tv_sec) * 1e9);
	return 0;
}

static int fuzz_nanosleep(const struct timespec *wanted, struct timespec *left)
{
	(void)left;
	kernel.now += (double)wanted->tv_sec + (double)wanted->tv_nsec * 1e-9;
	return 0;
}

static int count_granules(void *argument, const struct mpsd_allocation *one)
{
	*(long *)argument += (long)(one->bytes / MPSD_GRANULE);
	return 0;
}

/* After every success and every failure, the mapped memory is the memory that the arena lists. */
static void must_agree(struct mpsd_arena *arena)
{
	long granules = 0;

	must(mpsd_arena_for_each(arena, count_granules, &granules) == 0 && granules == fake.mappings, "what is there is mapped");
	must(fake.handles >= 0 && mpsd_arena_used_bytes(arena) / MPSD_GRANULE >= (uint64_t)granules, "what is mapped counts");
}

static void step(struct mpsd_arena *arena)
{
	struct mpsd_allocation some[16];
	uint64_t address, serial;
	size_t count;
	void *layout;
	int found;

	switch (any(16)) {
	case 0:
		mpsd_arena_flush(arena);
		break;
	case 1:
		mpsd_arena_refresh(arena);
		break;
	case 2:
		mpsd_arena_promoted(arena, other_generation() + any(2));
		break;
	case 3:
		mpsd_arena_yielded(arena);
		break;
	case 4:
		mpsd_arena_set_writable(arena, (int)any(2));
		break;
	case 5:
		mpsd_arena_commit(arena, any(2) ? "words" : NULL, 5);
		break;
	case 6:
		if (mpsd_arena_layout(arena, &layout, &count) == 0)
			free(layout);
		break;
	case 7:
		mpsd_arena_seal(arena);
		break;
	case 8:
		mpsd_arena_set_guard(arena, any(3) * (uint64_t)MPSD_GRANULE);
		break;
	case 9:
		mpsd_arena_restore(arena, &serial);
		break;
	case 10:
	case 11:
		found = mpsd_arena_list(arena, 0, some, 16);
		if (found > 0)
			mpsd_arena_free(arena, some[any((uint32_t)found)].address);
		break;
	default:
		mpsd_arena_alloc(arena, 1 + any(8 * MPSD_GRANULE), &address);
	}
	must_agree(arena);
}

static void use(struct mpsd_session *session)
{
	struct mpsd_arena *arena = NULL;

	if (mpsd_arena_open(session, &fake_driver, "arena", any(4) ? MPSD_WRITE : MPSD_READ, any(8) ? 0 : 0.01, &arena) == 0) {
		for (int i = 0; i < MOST_STEPS && choices_left(); i++)
			step(arena);
		mpsd_arena_close(arena);
	}
	must(fake.handles == 0, "every handle was released");
	must(fake.mappings == 0, "everything was unmapped");
	must(fake.windows == 0, "every window was freed");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mpsd_session *session;
	int before = open_descriptors();

	choices_begin(data, size);
	other.generation = other.commit = 1;
	other.is_busy = any(3) == 0;
	fake.seed = (unsigned)any(256);
	fake.fail_permille = any(2) ? 0 : any(100);
	kernel.now = 1;
	session = mpsd_session_open("/nowhere", "fuzz", NULL, 0);
	if (session) {
		mpsd_session_patience(session, 0.005, 0.005);
		for (int i = 0; i < 3 && choices_left(); i++)
			use(session);
		mpsd_session_close(session);
	}
	forget_answers();
	must(open_descriptors() == before, "no descriptor leaks");
	return 0;
}
