/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/session.h: requests and their answers, over connections that come and go.
 *
 *   not connected --connect, hello--> connected --end, goodbye, silence, a broken rule--> not connected
 */
#ifndef MPSD_CODE_SESSION_H
#define MPSD_CODE_SESSION_H

#define MPSD_RECONNECT_SECONDS 10.0
#ifndef MPSD_ANSWER_SECONDS
#define MPSD_ANSWER_SECONDS 30.0
#endif
#ifndef MPSD_GREET_SECONDS
#define MPSD_GREET_SECONDS 1.0 /* one attempt to connect again takes so long at least, if it must */
#endif

enum { MPSD_PROTOCOL_VERSION = 1, MPSD_LOSSES = 8 /* of one request: then mpsd is not only restarted */ };

/* Connect and send hello. 0; -ECONNRESET: not yet; else -errno with an error text. */
static inline int mpsd_greet(struct mpsd_session *session, double until)
{
	char why[MPSD_PEER_WORDS];
	unsigned char bytes[128];
	struct mpsd_answer answer;
	struct mpsd_pack pack;
	int rc, was_sent;

	rc = mpsd_wire_connect(&session->address, until, why, sizeof(why));
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ECONNRESET)
		return mpsd_fail(session, -ECONNRESET, 0, 0, "no mpsd at %s: %s", session->address.sun_path, why);
	if (rc < 0)
		return mpsd_fail(session, rc, 0, 0, "connecting to %s: %s", session->address.sun_path, why);
	session->fd = rc;
	mpsd_pack_begin(&pack, bytes, sizeof(bytes));
	mpsd_pack_map(&pack, 2);
	mpsd_pack_text(&pack, "version");
	mpsd_pack_uint(&pack, MPSD_PROTOCOL_VERSION);
	mpsd_pack_text(&pack, "program");
	mpsd_pack_text(&pack, session->program);
	rc = mpsd_exchange(session, "hello", bytes, pack.used, NULL, 0, until, &was_sent, &answer);
	if (rc == 0) {
		mpsd_answer_clear(&answer);
		return 0;
	}
	mpsd_hang_up(session);
	if (rc == -ECONNRESET)
		mpsd_fail(session, rc, session->parting_code, 0, "mpsd at %s hung up: %s", session->address.sun_path,
			  session->parting_code ? session->parting_words : "no reason given");
	return rc;
}

/* The end of waiting for an mpsd: the words are there. */
static inline int mpsd_gave_up(struct mpsd_session *session)
{
	int code = mpsd_error_code(session);

	return code == MPSD_TOO_MANY || code == MPSD_PROTOCOL ? mpsd_errno_of(code) : -ECONNREFUSED;
}

/* Until it is connected or `give_up` has come.  0, or -errno with words. */
static inline int mpsd_connect(struct mpsd_session *session, double give_up)
{
	double least = give_up > mpsd_now() ? MPSD_GREET_SECONDS : session->answer_seconds, until;
	int rc;

	while (session->fd < 0) {
		until = mpsd_now() + least; /* the listener may exist and not answer */
		rc = mpsd_greet(session, until > give_up ? until : give_up);
		if (rc != -ECONNRESET)
			return rc;
		if (mpsd_now() >= give_up)
			return mpsd_gave_up(session);
		mpsd_nap(MPSD_NAP_SECONDS);
	}
	return 0;
}

/* mpsd_call() under the session's lock. */
static inline int mpsd_call_locked(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes,
				   const int *fds, unsigned fd_count, int is_repeatable, double wait_seconds,
				   struct mpsd_answer *answer)
{
	double give_up = mpsd_now() + session->reconnect_seconds;
	int rc, was_sent;

	mpsd_collect_first(session);
	for (int losses = 0;; losses++) {
		rc = mpsd_connect(session, give_up);
		if (rc < 0)
			return rc;
		was_sent = 0;
		rc = mpsd_exchange(session, method, params, params_bytes, fds, fd_count,
				   mpsd_now() + session->answer_seconds + wait_seconds, &was_sent, answer);
		if (rc != -ECONNRESET)
			return rc;
		mpsd_hang_up(session);
		if (was_sent && !is_repeatable)
			return mpsd_fail(session, rc, session->parting_code, 0,
					 "%s: mpsd went away, and it is not known whether this was carried out", method);
		if (losses == MPSD_LOSSES || (session->parting_code == MPSD_PROTOCOL && losses))
			return mpsd_fail(session, session->parting_code ? mpsd_errno_of(session->parting_code) : -ECONNREFUSED,
					 session->parting_code, 0, "%s: mpsd hung up again and again: %s", method,
					 session->parting_code ? session->parting_words : "no reason given");
		give_up = mpsd_now() + session->reconnect_seconds;
	}
}

MPSD_API int mpsd_call(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes, const int *fds,
		       unsigned fd_count, int is_repeatable, double wait_seconds, struct mpsd_answer *answer)
{
	struct mpsd_answer own;
	int rc;

	if (mpsd_is_parents(session))
		return -ECHILD;
	if (fd_count > MPSD_DESCRIPTORS || !(wait_seconds >= 0 && wait_seconds <= 86400))
		return mpsd_fail(session, -EINVAL, 0, 0, "%s: %u descriptors, wait of %g s: out of range", method, fd_count,
				 wait_seconds);
	mpsd_answer_begin(&own);
	pthread_mutex_lock(&session->lock);
	rc = mpsd_call_locked(session, method, params, params_bytes, fds, fd_count, is_repeatable, wait_seconds, &own);
	pthread_mutex_unlock(&session->lock);
	if (rc < 0)
		return rc;
	if (answer)
		*answer = own;
	else
		mpsd_answer_clear(&own);
	return 0;
}

MPSD_API void mpsd_session_close(struct mpsd_session *session)
{
	struct mpsd_words *words, *next;

	if (!session)
		return;
	if (session->deferred.state == MPSD_DEFERRED_KNOWN && session->deferred.rc == 0)
		mpsd_answer_clear(&session->deferred.answer);
	mpsd_hang_up(session);
	for (words = session->words; words; words = next) {
		next = words->next;
		free(words);
	}
	if (!mpsd_is_parents(session)) { /* in a child they may be held by a thread that is not there */
		pthread_mutex_destroy(&session->lock);
		pthread_mutex_destroy(&session->words_lock);
	}
	free(session->datagram);
	free(session);
}

/* 0 or -ENAMETOOLONG. */
static inline int mpsd_choose_path(struct mpsd_session *session, const char *path)
{
	const char *ours = getenv("MPSD_PIPE_DIRECTORY"); /* where CUDA was led into a domain's own directory */
	const char *directory = ours && *ours ? ours : getenv("CUDA_MPS_PIPE_DIRECTORY");
	size_t room = sizeof(session->address.sun_path);
	int count;

	session->address.sun_family = AF_UNIX;
	if (path)
		count = snprintf(session->address.sun_path, room, "%s", path);
	else
		count = snprintf(session->address.sun_path, room, "%s/mpsd.sock",
				 directory && *directory ? directory : "/tmp/nvidia-mps");
	return count >= 0 && (size_t)count < room ? 0 : -ENAMETOOLONG;
}

static inline struct mpsd_session *mpsd_session_make(const char *program)
{
	struct mpsd_session *session = (struct mpsd_session *)calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->datagram = (unsigned char *)malloc(MPSD_DATAGRAM_BYTES);
	if (!session->datagram) {
		free(session);
		return NULL;
	}
	pthread_mutex_init(&session->lock, NULL);
	pthread_mutex_init(&session->words_lock, NULL);
	session->fd = -1;
	session->pid = getpid();
	session->reconnect_seconds = MPSD_RECONNECT_SECONDS;
	session->answer_seconds = MPSD_ANSWER_SECONDS;
	snprintf(session->program, sizeof(session->program), "%s", program ? program : "");
	return session;
}

MPSD_API struct mpsd_session *mpsd_session_open(const char *path, const char *program, char *why, size_t room)
{
	struct mpsd_session *session = mpsd_session_make(program);
	const char *words = "no memory";
	int rc = -ENOMEM;

	if (session) {
		rc = mpsd_choose_path(session, path);
		words = "the path of the socket is too long";
	}
	if (rc == 0) {
		rc = mpsd_connect(session, mpsd_now());
		words = mpsd_error(session);
	}
	if (rc == 0)
		return session;
	if (why && room)
		snprintf(why, room, "%s", words);
	mpsd_session_close(session);
	errno = -rc;
	return NULL;
}

MPSD_API void mpsd_session_patience(struct mpsd_session *session, double reconnect_seconds, double answer_seconds)
{
	if (mpsd_is_parents(session))
		return;
	pthread_mutex_lock(&session->lock);
	session->reconnect_seconds = reconnect_seconds;
	session->answer_seconds = answer_seconds;
	pthread_mutex_unlock(&session->lock);
}

#endif
