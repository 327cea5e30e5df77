/* SPDX-License-Identifier: MIT */
/*
 * mpsd/code/deferred.h: a request with an answer that is read later, so that mpsd and the caller work at the same time.
 *
 *   NONE --soon--> SENT --another request is to be sent--> KNOWN          one at a time in a session; a call that finds it in
 *     ^             |                                        |            use makes an ordinary request
 *     `---outcome---`----------------outcome-----------------'
 */
#ifndef MPSD_CODE_DEFERRED_H
#define MPSD_CODE_DEFERRED_H

/* Read the pending answer. Called with the session's lock held; keeps the calling thread's error text. */
static inline void mpsd_collect(struct mpsd_session *session)
{
	struct mpsd_deferred *deferred = &session->deferred;
	struct mpsd_words kept;
	int has_words = mpsd_keep_words(session, &kept);

	deferred->rc = session->fd < 0 ? -ECONNRESET : mpsd_receive(session, deferred->method, deferred->id, deferred->until, &deferred->answer);
	if (deferred->rc < 0 && deferred->rc != -ECONNRESET)
		mpsd_keep_words(session, &deferred->words);
	if (has_words)
		mpsd_restore_words(session, &kept);
	if (deferred->state == MPSD_DEFERRED_UNWANTED && deferred->rc == 0)
		mpsd_answer_clear(&deferred->answer);
	deferred->state = deferred->state == MPSD_DEFERRED_UNWANTED ? MPSD_DEFERRED_NONE : MPSD_DEFERRED_KNOWN;
}

/* Before another request goes out. */
static inline void mpsd_collect_first(struct mpsd_session *session)
{
	if (session->deferred.state == MPSD_DEFERRED_SENT || session->deferred.state == MPSD_DEFERRED_UNWANTED)
		mpsd_collect(session);
}

/* Sends what may be repeated.  method: a literal.  0: mpsd_outcome() or mpsd_disown() has to follow.  -EAGAIN: not now: use
 * mpsd_call(). */
static inline int mpsd_call_soon(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes,
				 const int *fds, unsigned fd_count)
{
	struct mpsd_deferred *deferred = &session->deferred;
	int rc = -EAGAIN;

	pthread_mutex_lock(&session->lock);
	if (deferred->state == MPSD_DEFERRED_NONE && session->fd >= 0) {
		deferred->method = method;
		deferred->until = mpsd_now() + session->answer_seconds;
		if (mpsd_send_request(session, method, params, params_bytes, fds, fd_count, deferred->until, &deferred->id) == 0) {
			deferred->state = MPSD_DEFERRED_SENT;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&session->lock);
	return rc;
}

/* As of mpsd_call(), but -ECONNRESET: the connection ended first.  answer may be NULL. */
static inline int mpsd_outcome(struct mpsd_session *session, struct mpsd_answer *answer)
{
	struct mpsd_deferred *deferred = &session->deferred;
	int rc;

	pthread_mutex_lock(&session->lock);
	mpsd_collect_first(session);
	rc = deferred->rc;
	if (rc < 0 && rc != -ECONNRESET)
		mpsd_restore_words(session, &deferred->words);
	else if (rc == 0 && answer)
		*answer = deferred->answer;
	else if (rc == 0)
		mpsd_answer_clear(&deferred->answer);
	deferred->state = MPSD_DEFERRED_NONE;
	pthread_mutex_unlock(&session->lock);
	return rc;
}

/* No caller will ask for the outcome any more. */
static inline void mpsd_disown(struct mpsd_session *session)
{
	struct mpsd_deferred *deferred = &session->deferred;

	pthread_mutex_lock(&session->lock);
	if (deferred->state == MPSD_DEFERRED_KNOWN && deferred->rc == 0)
		mpsd_answer_clear(&deferred->answer);
	deferred->state = deferred->state == MPSD_DEFERRED_SENT ? MPSD_DEFERRED_UNWANTED : MPSD_DEFERRED_NONE;
	pthread_mutex_unlock(&session->lock);
}

#endif
