/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/owed.h: a request with an answer that is read later, so that mpsd and the caller work at the same time.
 *
 *   NONE --soon--> SENT --another request is to be sent--> KNOWN          one at a time in a session; a call that finds it in
 *     ^             |                                        |            use makes an ordinary request
 *     `---outcome---`----------------outcome-----------------'
 */
#ifndef MPSD_CODE_OWED_H
#define MPSD_CODE_OWED_H

/* Read the pending answer. Called with the session's lock held; keeps the calling thread's error text. */
static inline void mpsd_collect(struct mpsd_session *session)
{
	struct mpsd_owed *owed = &session->owed;
	struct mpsd_words kept;
	int has_words = mpsd_keep_words(session, &kept);

	owed->rc = session->fd < 0 ? -ECONNRESET : mpsd_receive(session, owed->method, owed->id, owed->until, &owed->answer);
	if (owed->rc < 0 && owed->rc != -ECONNRESET)
		mpsd_keep_words(session, &owed->words);
	if (has_words)
		mpsd_restore_words(session, &kept);
	if (owed->state == MPSD_OWED_UNWANTED && owed->rc == 0)
		mpsd_answer_clear(&owed->answer);
	owed->state = owed->state == MPSD_OWED_UNWANTED ? MPSD_OWED_NONE : MPSD_OWED_KNOWN;
}

/* Before another request goes out. */
static inline void mpsd_collect_first(struct mpsd_session *session)
{
	if (session->owed.state == MPSD_OWED_SENT || session->owed.state == MPSD_OWED_UNWANTED)
		mpsd_collect(session);
}

/* Sends what may be repeated.  method: a literal.  0: mpsd_outcome() or mpsd_disown() has to follow.  -EAGAIN: not now: use
 * mpsd_call(). */
static inline int mpsd_call_soon(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes,
				 const int *fds, unsigned fd_count)
{
	struct mpsd_owed *owed = &session->owed;
	int rc = -EAGAIN;

	pthread_mutex_lock(&session->lock);
	if (owed->state == MPSD_OWED_NONE && session->fd >= 0) {
		owed->method = method;
		owed->until = mpsd_now() + session->answer_seconds;
		if (mpsd_send_request(session, method, params, params_bytes, fds, fd_count, owed->until, &owed->id) == 0) {
			owed->state = MPSD_OWED_SENT;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&session->lock);
	return rc;
}

/* As of mpsd_call(), but -ECONNRESET: the connection ended first.  answer may be NULL. */
static inline int mpsd_outcome(struct mpsd_session *session, struct mpsd_answer *answer)
{
	struct mpsd_owed *owed = &session->owed;
	int rc;

	pthread_mutex_lock(&session->lock);
	mpsd_collect_first(session);
	rc = owed->rc;
	if (rc < 0 && rc != -ECONNRESET)
		mpsd_restore_words(session, &owed->words);
	else if (rc == 0 && answer)
		*answer = owed->answer;
	else if (rc == 0)
		mpsd_answer_clear(&owed->answer);
	owed->state = MPSD_OWED_NONE;
	pthread_mutex_unlock(&session->lock);
	return rc;
}

/* No caller will ask for the outcome any more. */
static inline void mpsd_disown(struct mpsd_session *session)
{
	struct mpsd_owed *owed = &session->owed;

	pthread_mutex_lock(&session->lock);
	if (owed->state == MPSD_OWED_KNOWN && owed->rc == 0)
		mpsd_answer_clear(&owed->answer);
	owed->state = owed->state == MPSD_OWED_SENT ? MPSD_OWED_UNWANTED : MPSD_OWED_NONE;
	pthread_mutex_unlock(&session->lock);
}

#endif
