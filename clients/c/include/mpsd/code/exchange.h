/* SPDX-License-Identifier: MIT */
/* mpsd/code/exchange.h: one request and its answer on a connection that is there.  All is called with the session's lock held. */
#ifndef MPSD_CODE_EXCHANGE_H
#define MPSD_CODE_EXCHANGE_H

static inline int mpsd_errno_of(int code)
{
	switch (code) {
	case MPSD_BAD_REQUEST:
		return -EINVAL;
	case MPSD_NOT_ALLOWED:
		return -EACCES;
	case MPSD_NO_SUCH_DEVICE:
		return -ENODEV;
	case MPSD_TOO_MANY:
		return -EUSERS;
	case MPSD_PROTOCOL:
		return -EPROTO;
	case MPSD_NO_ROOM:
		return -ENOSPC;
	case MPSD_NO_SUCH_METHOD:
		return -ENOSYS;
	case MPSD_ARENA_BUSY:
		return -EBUSY;
	case MPSD_STALE_GENERATION:
		return -ESTALE;
	case MPSD_ARENA_SEALED:
		return -EROFS;
	case 3: /* NO_SUCH_SERVER */
	case 4: /* NO_SUCH_CLIENT */
	case 14: /* NO_SUCH_LEASE */
	case 15: /* NO_SUCH_DOMAIN */
	case 19: /* NO_SUCH_FAULT */
	case MPSD_NO_SUCH_ARENA:
		return -ENOENT;
	default:
		return -EREMOTEIO;
	}
}

MPSD_API void mpsd_answer_clear(struct mpsd_answer *answer)
{
	mpsd_close_all(answer->fds, answer->fd_count);
	answer->fd_count = 0;
	free(answer->bytes);
	answer->bytes = NULL;
	mpsd_unpack_begin(&answer->result, "", 0);
}

static inline void mpsd_answer_begin(struct mpsd_answer *answer)
{
	memset(answer, 0, sizeof(*answer));
	mpsd_unpack_begin(&answer->result, "", 0);
}

/* Copy a text of a map, cut to the buffer; "" if the map does not have it. */
static inline void mpsd_copy_text(const struct mpsd_unpack *map, const char *key, char *out, size_t room)
{
	struct mpsd_unpack at;
	const char *text = "";
	size_t bytes = 0;

	if (mpsd_unpack_find(map, key, &at) < 0 || mpsd_unpack_text(&at, &text, &bytes) < 0)
		bytes = 0;
	if (bytes >= room)
		bytes = room - 1;
	memcpy(out, text, bytes);
	out[bytes] = '\0';
	for (size_t i = 0; i < bytes; i++)
		if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f)
			out[i] = ' ';
}

static inline void mpsd_hang_up(struct mpsd_session *session)
{
	if (session->fd >= 0)
		close(session->fd);
	session->fd = -1;
}

/* One datagram that came.  1: the response to `id`: error and result follow in *at.  0: something else that may come.  -EPROTO;
 * -ECONNRESET: a goodbye. */
static inline int mpsd_sort(struct mpsd_session *session, struct mpsd_unpack *at, uint32_t id)
{
	uint64_t kind, number;
	uint32_t entries;
	const char *method;
	size_t bytes;

	if (mpsd_unpack_array(at, &entries) < 0 || mpsd_unpack_uint(at, &kind) < 0)
		return -EPROTO;
	if (kind == 1 && entries == 4 && mpsd_unpack_uint(at, &number) == 0 && number == id)
		return 1;
	if (kind != 2 || entries != 3 || mpsd_unpack_text(at, &method, &bytes) < 0 || mpsd_unpack_array(at, &entries) < 0)
		return -EPROTO;
	if (bytes == 7 && !memcmp(method, "goodbye", 7) && entries == 1) {
		session->parting_code = MPSD_STOPPING;
		if (mpsd_unpack_find_uint(at, "code", &number) == 0 && number <= INT32_MAX)
			session->parting_code = (int)number;
		mpsd_copy_text(at, "message", session->parting_words, sizeof(session->parting_words));
		return -ECONNRESET; /* nothing comes after it */
	}
	return 0;
}

/* Record mpsd's refusal as an error text. at: the error of a response. */
static inline int mpsd_refused(struct mpsd_session *session, const char *method, const struct mpsd_unpack *at)
{
	char name[40], text[360];
	uint64_t code;

	if (mpsd_unpack_find_uint(at, "code", &code) < 0 || !code || code > INT32_MAX)
		return mpsd_fail(session, -EPROTO, 0, 0, "%s: mpsd's answer is no answer of the protocol", method);
	mpsd_copy_text(at, "name", name, sizeof(name));
	mpsd_copy_text(at, "message", text, sizeof(text));
	return mpsd_fail(session, mpsd_errno_of((int)code), (int)code, 0, "%s: %s: %s", method, name, text);
}

/* The answer that was received into answer->bytes.  0 or -errno with words; then *answer holds nothing. */
static inline int mpsd_read_answer(struct mpsd_session *session, const char *method, struct mpsd_unpack at, struct mpsd_answer *answer)
{
	struct mpsd_unpack end;
	int rc = 0;

	if (mpsd_unpack_kind(&at) == MPSD_KIND_MAP) {
		rc = mpsd_refused(session, method, &at);
		mpsd_answer_clear(answer);
		return rc;
	}
	if (mpsd_unpack_nil(&at) == 0) {
		answer->result = at;
		end = at;
		if (mpsd_unpack_kind(&end) == MPSD_KIND_MAP && mpsd_unpack_skip(&end) == 0 && end.at == end.end)
			return 0;
	}
	mpsd_answer_clear(answer);
	return mpsd_fail(session, -EPROTO, 0, 0, "%s: mpsd's answer is no answer of the protocol", method);
}

/* Waits for the response to `id`.  0; -ECONNRESET: the connection has ended; else -errno with words.  The connection is over
 * after every failure but a refusal. */
static inline int mpsd_receive(struct mpsd_session *session, const char *method, uint32_t id, double until, struct mpsd_answer *answer)
{
	struct mpsd_unpack at;
	size_t count;
	int rc;

	mpsd_answer_begin(answer);
	answer->bytes = (unsigned char *)malloc(MPSD_DATAGRAM_BYTES);
	if (!answer->bytes) {
		mpsd_hang_up(session);
		return mpsd_fail(session, -ENOMEM, 0, 0, "%s: no memory for the answer", method);
	}
	for (;;) {
		rc = mpsd_wire_receive(session->fd, answer->bytes, &count, answer->fds, &answer->fd_count, until);
		if (rc < 0)
			break;
		mpsd_unpack_begin(&at, answer->bytes, count);
		rc = mpsd_sort(session, &at, id);
		if (rc == 1)
			return mpsd_read_answer(session, method, at, answer);
		if (rc < 0)
			break;
		mpsd_close_all(answer->fds, answer->fd_count);
		answer->fd_count = 0;
		if (mpsd_now() >= until) { /* a peer that keeps sending other messages */
			rc = -ETIMEDOUT;
			break;
		}
	}
	mpsd_answer_clear(answer);
	mpsd_hang_up(session);
	if (rc == -ECONNRESET)
		return rc;
	return mpsd_fail(session, rc, 0, 0, "%s: %s", method,
			 rc == -ETIMEDOUT ? "mpsd did not answer in time" :
			 rc == -EMFILE	  ? "not all descriptors of the answer came: too many are open here (RLIMIT_NOFILE), "
					    "or there were more than 128" :
			 rc == -EPROTO || rc == -EMSGSIZE ? "mpsd's answer is no answer of the protocol" : strerror(-rc));
}

/* Send one request on the existing connection. 0; -ECONNRESET: the connection has ended; else -errno with an error text. */
static inline int mpsd_send_request(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes,
				    const int *fds, unsigned fd_count, double until, uint32_t *id)
{
	struct mpsd_pack pack;
	int rc;

	*id = session->next_id++;
	mpsd_pack_begin(&pack, session->datagram, MPSD_DATAGRAM_BYTES);
	mpsd_pack_array(&pack, 4);
	mpsd_pack_uint(&pack, 0);
	mpsd_pack_uint(&pack, *id);
	mpsd_pack_text(&pack, method);
	mpsd_pack_array(&pack, params_bytes ? 1 : 0);
	mpsd_pack_raw(&pack, params, params_bytes);
	if (pack.failed)
		return mpsd_fail(session, -EMSGSIZE, 0, 0, "%s: a request has at most %d bytes", method, MPSD_DATAGRAM_BYTES);
	session->parting_code = 0;
	rc = mpsd_wire_send(session->fd, pack.bytes, pack.used, fds, fd_count, until);
	if (rc < 0 && rc != -ECONNRESET) {
		mpsd_hang_up(session);
		return mpsd_fail(session, rc, 0, 0, "%s: sending: %s", method, strerror(-rc));
	}
	return rc;
}

/* One request and its answer.  Results as those of mpsd_receive(); *was_sent: mpsd may have taken it. */
static inline int mpsd_exchange(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes,
				const int *fds, unsigned fd_count, double until, int *was_sent, struct mpsd_answer *answer)
{
	uint32_t id;
	int rc = mpsd_send_request(session, method, params, params_bytes, fds, fd_count, until, &id);

	if (rc < 0 && rc != -ECONNRESET)
		return rc;
	*was_sent = rc == 0;
	return mpsd_receive(session, method, id, until, answer); /* also where it was not sent: why, may still be there to read */
}

#endif
