/* SPDX-License-Identifier: MIT */
/* mpsd/code/words.h: a session, and the error texts of its failures, which are per thread. */
#ifndef MPSD_CODE_WORDS_H
#define MPSD_CODE_WORDS_H

enum { MPSD_WORDS_ROOM = 512, MPSD_WORDS_THREADS = 64 };

struct mpsd_words { /* of one thread; only that thread reads and writes what is in it */
	struct mpsd_words *next; /* under words_lock */
	pthread_t thread;        /* under words_lock */
	int code;
	int cuda;
	char text[MPSD_WORDS_ROOM];
};

enum mpsd_deferred_state { MPSD_DEFERRED_NONE = 0, MPSD_DEFERRED_SENT = 1, MPSD_DEFERRED_KNOWN = 2, MPSD_DEFERRED_UNWANTED = 3 };

struct mpsd_deferred { /* an answer that is read later: deferred.h */
	enum mpsd_deferred_state state;
	const char *method;
	uint32_t id;
	double until;
	int rc;                 /* once it is KNOWN; and then its words, or what it brought */
	struct mpsd_words words;
	struct mpsd_answer answer;
};

struct mpsd_session {
	pthread_mutex_t lock; /* protects fd to parting_words: one request at a time; taken under an arena's */
	int fd;               /* -1: not connected */
	uint32_t next_id;
	unsigned char *datagram; /* MPSD_DATAGRAM_BYTES, for requests */
	double reconnect_seconds;
	double answer_seconds;
	struct mpsd_deferred deferred;
	int parting_code; /* of the last goodbye; 0: none */
	char parting_words[256];

	pthread_mutex_t words_lock; /* nothing is taken under it */
	struct mpsd_words *words;   /* the last one that failed first */
	pid_t pid;
	struct sockaddr_un address;
	char program[65];
};

static inline int mpsd_is_parents(const struct mpsd_session *session)
{
	return getpid() != session->pid;
}

/* This thread's error text, or a new one; beyond MPSD_WORDS_THREADS that of the thread that failed longest ago. NULL: no memory. */
static inline struct mpsd_words *mpsd_words_of(struct mpsd_session *session, int make)
{
	struct mpsd_words **at = &session->words, *words;
	unsigned count = 0;

	pthread_mutex_lock(&session->words_lock);
	while (*at && !pthread_equal((*at)->thread, pthread_self()) && (count < MPSD_WORDS_THREADS - 1 || !make)) {
		at = &(*at)->next;
		count++;
	}
	words = *at;
	if (words && make)
		*at = words->next;
	if (!words && make)
		words = (struct mpsd_words *)calloc(1, sizeof(*words));
	if (words && make) {
		words->thread = pthread_self();
		words->next = session->words;
		session->words = words;
	}
	pthread_mutex_unlock(&session->words_lock);
	return words;
}

/* Gives `rc` back.  May be called with locks held. */
__attribute__((format(printf, 5, 6))) static inline int mpsd_fail(struct mpsd_session *session, int rc, int code, int cuda,
								  const char *format, ...)
{
	struct mpsd_words *words = mpsd_is_parents(session) ? NULL : mpsd_words_of(session, 1);
	va_list arguments;

	if (!words)
		return rc;
	words->code = code;
	words->cuda = cuda;
	va_start(arguments, format);
	vsnprintf(words->text, sizeof(words->text), format, arguments);
	va_end(arguments);
	return rc;
}

/* Save the error text, so that the cleanup after a failure does not change it. Returns whether any exists. */
static inline int mpsd_keep_words(struct mpsd_session *session, struct mpsd_words *kept)
{
	const struct mpsd_words *words = mpsd_words_of(session, 0);

	if (words) { /* next and thread are others' too */
		kept->code = words->code;
		kept->cuda = words->cuda;
		memcpy(kept->text, words->text, sizeof(kept->text));
	}
	return words != NULL;
}

/* After mpsd_keep_words() of the same thread. */
static inline void mpsd_restore_words(struct mpsd_session *session, const struct mpsd_words *kept)
{
	mpsd_fail(session, 0, kept->code, kept->cuda, "%s", kept->text);
}

static inline double mpsd_reconnect_seconds(struct mpsd_session *session)
{
	double seconds;

	pthread_mutex_lock(&session->lock);
	seconds = session->reconnect_seconds;
	pthread_mutex_unlock(&session->lock);
	return seconds;
}

MPSD_API const char *mpsd_error(struct mpsd_session *session)
{
	struct mpsd_words *words;

	if (mpsd_is_parents(session))
		return "this session is that of the process before fork: open another";
	words = mpsd_words_of(session, 0);
	return words ? words->text : "";
}

MPSD_API int mpsd_error_code(struct mpsd_session *session)
{
	struct mpsd_words *words = mpsd_is_parents(session) ? NULL : mpsd_words_of(session, 0);

	return words ? words->code : 0;
}

MPSD_API int mpsd_error_cuda(struct mpsd_session *session)
{
	struct mpsd_words *words = mpsd_is_parents(session) ? NULL : mpsd_words_of(session, 0);

	return words ? words->cuda : 0;
}

#endif
