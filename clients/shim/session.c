/* Talking to mpsd: with the C client's session where an answer is needed, and with two datagrams where none is. */
#define SHIM_HAS_MPSD_CODE
#include "shim.h"

#define RECONNECT_SECONDS 2.0
#define ANSWER_SECONDS 5.0
#define RETRY_SECONDS 10.0
#define TELL_SECONDS 0.1
#define GREET_SECONDS 0.05 /* of them: for the answer to hello */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects what follows; held while connecting */
static struct mpsd_session *session;
static double tried_at; /* 0: never */

static char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A parent's shim may have led CUDA into a domain's own directory (lease.c); then MPSD_PIPE_DIRECTORY is mpsd's. */
static void choose_directory(void)
{
	const char *ours = secure_getenv("MPSD_PIPE_DIRECTORY"), *cuda = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
	const char *chosen = ours && *ours ? ours : cuda && *cuda ? cuda : "/tmp/nvidia-mps";

	if (strlen(chosen) < sizeof(directory) - sizeof("/mpsd.sock"))
		strcpy(directory, chosen);
}

/* The connection is the parent's: a thread may have been in the middle of a call. */
void session_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	session = NULL;
	tried_at = 0;
}

double session_now(void)
{
	return mpsd_now();
}

const char *session_directory(void)
{
	pthread_once(&once, choose_directory);
	return directory;
}

static int set_path(struct mpsd_session *made)
{
	char path[sizeof(directory) + sizeof("/mpsd.sock")];

	if (!*session_directory())
		return -ENAMETOOLONG;
	strcpy(stpcpy(path, session_directory()), "/mpsd.sock");
	return mpsd_choose_path(made, path);
}

/* As mpsd_session_open(), with the patience of a guest from the first datagram on. */
static struct mpsd_session *open_session(void)
{
	struct mpsd_session *made = mpsd_session_make("libmpsd");

	if (!made)
		return NULL;
	mpsd_session_patience(made, RECONNECT_SECONDS, ANSWER_SECONDS);
	if (set_path(made) == 0 && mpsd_connect(made, mpsd_now()) == 0)
		return made;
	shim_log("mpsd cannot be reached: %s", mpsd_error(made));
	mpsd_session_close(made);
	return NULL;
}

struct mpsd_session *session_get(void)
{
	struct mpsd_session *got;

	pthread_mutex_lock(&lock);
	if (!session && (tried_at == 0 || mpsd_now() - tried_at > RETRY_SECONDS)) {
		session = open_session();
		tried_at = mpsd_now();
	}
	got = session;
	pthread_mutex_unlock(&lock);
	return got;
}

static size_t pack_request(unsigned char *bytes, size_t room, unsigned id, const char *method, const void *params, size_t count)
{
	struct mpsd_pack pack;

	mpsd_pack_begin(&pack, bytes, room);
	mpsd_pack_array(&pack, 4);
	mpsd_pack_uint(&pack, 0);
	mpsd_pack_uint(&pack, id);
	mpsd_pack_text(&pack, method);
	mpsd_pack_array(&pack, 1);
	mpsd_pack_raw(&pack, params, count);
	return pack.failed ? 0 : pack.used;
}

/* Returns whether an answer came. */
static bool take_answer(int fd, unsigned char *answer, double until)
{
	int fds[MPSD_DESCRIPTORS];
	unsigned fd_count = 0;
	size_t count;

	if (!answer || mpsd_wire_receive(fd, answer, &count, fds, &fd_count, until))
		return false;
	mpsd_close_all(fds, fd_count);
	return true;
}

/* Before Linux 6.5 mpsd recognizes a process by a message that it sends after mpsd has read the ones before. */
static void send_both(int fd, const char *method, const void *params, size_t bytes, double until)
{
	unsigned char greeting[64], datagram[4096], *answer = malloc(MPSD_DATAGRAM_BYTES);
	struct mpsd_pack pack;
	bool greeted;
	size_t used;

	mpsd_pack_begin(&pack, greeting, sizeof(greeting));
	mpsd_pack_map(&pack, 2);
	mpsd_pack_text(&pack, "version");
	mpsd_pack_uint(&pack, MPSD_PROTOCOL_VERSION);
	mpsd_pack_text(&pack, "program");
	mpsd_pack_text(&pack, "libmpsd");
	used = pack_request(datagram, sizeof(datagram), 1, "hello", greeting, pack.used);
	if (mpsd_wire_send(fd, datagram, used, NULL, 0, until) == 0) {
		greeted = take_answer(fd, answer, until - TELL_SECONDS + GREET_SECONDS);
		used = pack_request(datagram, sizeof(datagram), 2, method, params, bytes);
		if (used && mpsd_wire_send(fd, datagram, used, NULL, 0, until) == 0 &&
		    (greeted || take_answer(fd, answer, until)))
			take_answer(fd, answer, until);
	}
	free(answer);
}

/* On a connection of its own, so that it does not wait for another request. The second datagram waits for the answer to
 * the first for a moment only; a slow mpsd reads both after this process has closed the connection. */
void session_tell(const char *method, const void *params, size_t bytes)
{
	double until = mpsd_now() + TELL_SECONDS;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char why[MPSD_PEER_WORDS];
	int fd;

	if (!*session_directory())
		return;
	strcpy(stpcpy(address.sun_path, session_directory()), "/mpsd.sock"); /* it fits: choose_directory() */
	fd = mpsd_wire_connect(&address, until, why, sizeof(why));
	if (fd < 0) {
		shim_log("%s was not told to mpsd: %s: %s", method, address.sun_path, why);
		return;
	}
	send_both(fd, method, params, bytes, until);
	close(fd);
}
