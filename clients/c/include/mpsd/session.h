/* SPDX-License-Identifier: MIT */
/*
 * mpsd/session.h: a connection to mpsd.  A session reconnects when mpsd was restarted, and then repeats requests that may be
 * repeated.  Every function may be called from any thread; a session has one request in flight at a time, and one request of an
 * arena that mpsd answers later.
 *
 * Results are 0 or more, or -errno:
 *
 *   -EINVAL        mpsd: BAD_REQUEST; or an argument of the call itself
 *   -EACCES        NOT_ALLOWED               -ENODEV   NO_SUCH_DEVICE     -ENOENT   NO_SUCH_ARENA, and other missing objects
 *   -EBUSY         ARENA_BUSY                -ESTALE   STALE_GENERATION   -EROFS    ARENA_SEALED
 *   -ENOSPC        NO_ROOM                   -EUSERS   TOO_MANY           -ENOSYS   NO_SUCH_METHOD: mpsd and library differ
 *   -EREMOTEIO     any other refusal; mpsd_error_code() returns it
 *   -EPERM         another user listens where mpsd should be, not root or this program's own: nothing was sent
 *   -ECONNREFUSED  no process listens, and none began to in time
 *   -ECONNRESET    mpsd ended during a request that may not be repeated: it may have been carried out
 *   -ETIMEDOUT     no answer in time         -EPROTO   mpsd sent an invalid message
 *   -ECHILD        the session is a parent's: after fork, open another
 *   -ENOMEM        no memory, of the process or (mpsd_error_cuda() is 2) of the GPU
 */
#ifndef MPSD_SESSION_H
#define MPSD_SESSION_H

enum { /* in one datagram, either way */
	MPSD_DATAGRAM_BYTES = 65536,
	MPSD_DESCRIPTORS = 128
};

enum mpsd_code { /* codes of refusals; docs/errors.md lists them */
	MPSD_BAD_REQUEST = 1,
	MPSD_NOT_ALLOWED = 2,
	MPSD_NO_SUCH_DEVICE = 5,
	MPSD_TOO_MANY = 7,
	MPSD_STOPPING = 8,
	MPSD_PROTOCOL = 12,
	MPSD_KEEPER_FAILED = 13,
	MPSD_NO_ROOM = 16,
	MPSD_NO_SUCH_METHOD = 18,
	MPSD_NO_SUCH_ARENA = 20,
	MPSD_ARENA_BUSY = 21,
	MPSD_STALE_GENERATION = 22,
	MPSD_ARENA_SEALED = 23
};

struct mpsd_session;

struct mpsd_answer {
	unsigned char *bytes;      /* the whole datagram; mpsd_answer_clear() frees it */
	struct mpsd_unpack result; /* within it */
	int fds[128];              /* MPSD_DESCRIPTORS; mpsd_answer_clear() closes those that are not -1 */
	unsigned fd_count;
};

/* path: of the socket; NULL: mpsd.sock in $MPSD_PIPE_DIRECTORY (set where CUDA was led into a
 * domain's own directory), in $CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps.  program: the name for mpsd's log.
 * Fails at once if no process listens.  Returns NULL with errno, and the reason in `why` (room bytes, may be NULL). */
MPSD_API struct mpsd_session *mpsd_session_open(const char *path, const char *program, char *why, size_t room);
/* Close it after its arenas.  In a child after fork: frees the memory and closes the descriptor, and sends nothing.  NULL is
 * allowed. */
MPSD_API void mpsd_session_close(struct mpsd_session *session);
/* Seconds to wait for a restarted mpsd (default 10), and for each answer (30). */
MPSD_API void mpsd_session_patience(struct mpsd_session *session, double reconnect_seconds, double answer_seconds);

/* The last failure of this thread on this session, or on one of its arenas: the request and the reason. The text stays until
 * this thread's next failure on it. "" and 0 before the first. */
MPSD_API const char *mpsd_error(struct mpsd_session *session);
MPSD_API int mpsd_error_code(struct mpsd_session *session); /* enum mpsd_code or another of mpsd's; 0: no refusal */
MPSD_API int mpsd_error_cuda(struct mpsd_session *session); /* CUresult; 0: no driver call failed */

/* Any method.  params: one packed map, or nothing (NULL).  fds are borrowed.  is_repeatable: the method is
 * idempotent.  wait_seconds: additional time for the answer.  answer may be NULL. */
MPSD_API int mpsd_call(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes, const int *fds,
		       unsigned fd_count, int is_repeatable, double wait_seconds, struct mpsd_answer *answer);
MPSD_API void mpsd_answer_clear(struct mpsd_answer *answer);

#endif
