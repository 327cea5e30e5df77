/* SPDX-License-Identifier: MIT */
/*
 * mpsd/session.h: talking to mpsd.  A session connects again by itself when mpsd was restarted, and then repeats what may be
 * repeated.  All may be called from any thread; one request of a session at a time is on its way, besides one of an arena's that
 * is answered later.
 *
 * Results are 0 or more, or -errno:
 *
 *   -EINVAL        mpsd: BAD_REQUEST; or an argument of the call itself
 *   -EACCES        NOT_ALLOWED               -ENODEV   NO_SUCH_DEVICE     -ENOENT   NO_SUCH_ARENA, and whatever else is not there
 *   -EBUSY         ARENA_BUSY                -ESTALE   STALE_GENERATION   -EROFS    ARENA_SEALED
 *   -ENOSPC        NO_ROOM                   -EUSERS   TOO_MANY           -ENOSYS   NO_SUCH_METHOD: an older mpsd
 *   -EREMOTEIO     any other refusal; mpsd_error_code() says which
 *   -EPERM         another user listens where mpsd should be, not root or this program's own: nothing was sent
 *   -ECONNREFUSED  nobody is there, and nobody came in time
 *   -ECONNRESET    mpsd went away with a request that may not be repeated: it was carried out, or not
 *   -ETIMEDOUT     no answer in time         -EPROTO   what came is not the protocol
 *   -ECHILD        the session is a parent's: after fork, open another
 *   -ENOMEM        no memory, of the process or (mpsd_error_cuda() is 2) of the GPU
 */
#ifndef MPSD_SESSION_H
#define MPSD_SESSION_H

enum { /* in one datagram, either way */
	MPSD_DATAGRAM_BYTES = 65536,
	MPSD_DESCRIPTORS = 128
};

enum mpsd_code { /* of refusals, as docs/errors.md has them */
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
 * domain's own directory), in $CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps.  program: what mpsd's log calls us.
 * Nobody there is a failure at once.  NULL: errno says why, and `why` (room bytes, may be NULL) in words. */
MPSD_API struct mpsd_session *mpsd_session_open(const char *path, const char *program, char *why, size_t room);
/* After its arenas.  In a child after fork: frees the memory and closes the descriptor, and says nothing.  NULL is taken. */
MPSD_API void mpsd_session_close(struct mpsd_session *session);
/* How long an mpsd that went away is waited for (10 s), and each answer (30 s). */
MPSD_API void mpsd_session_patience(struct mpsd_session *session, double reconnect_seconds, double answer_seconds);

/* The last failure of this thread on this session, or on an arena of it: what was asked, what was found.  The text stays
 * until this thread's next failure on it.  "" and 0 before the first. */
MPSD_API const char *mpsd_error(struct mpsd_session *session);
MPSD_API int mpsd_error_code(struct mpsd_session *session); /* enum mpsd_code or another of mpsd's; 0: mpsd refused nothing */
MPSD_API int mpsd_error_cuda(struct mpsd_session *session); /* CUresult; 0: no call of the driver failed */

/* Any method.  params: one packed map, or nothing (NULL).  fds are borrowed.  is_repeatable: carrying it out twice is as good
 * as once.  wait_seconds: how much longer than usual the answer may take.  answer may be NULL. */
MPSD_API int mpsd_call(struct mpsd_session *session, const char *method, const void *params, size_t params_bytes, const int *fds,
		       unsigned fd_count, int is_repeatable, double wait_seconds, struct mpsd_answer *answer);
MPSD_API void mpsd_answer_clear(struct mpsd_answer *answer);

#endif
