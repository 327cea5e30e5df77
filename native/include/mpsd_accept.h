/* SPDX-License-Identifier: MIT */
/*
 * mpsd_accept.h: a connection is accepted and given to the keeper, with nothing in between.
 *
 * Until the keeper has it, the death of mpsd closes it, and its client runs without MPS or gets an error.  In Python the two
 * calls are some 70 us apart, and milliseconds where another thread takes the interpreter meanwhile.
 */
#ifndef MPSD_ACCEPT_H
#define MPSD_ACCEPT_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#endif

/*
 * The descriptor, close-on-exec and non-blocking, or -errno where nobody was accepted.  `request`: a datagram for `keeper`, with
 * which the descriptor goes; keeper -1: there is none.  *lost: 0, or the errno of a keeper that did not take it.  Waits for
 * nobody where `listener` is non-blocking.
 */
static int mpsd_accept(int listener, int keeper, const char *request, size_t bytes, int *lost);

#ifndef MPSD_CDEF
static int mpsd_accept(int listener, int keeper, const char *request, size_t bytes, int *lost)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec part = { (char *)request, bytes };
	struct msghdr datagram = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.bytes),
	};
	int fd;

	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(sizeof(int));
	*lost = 0;
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return -errno;
	memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	if (keeper >= 0 && sendmsg(keeper, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		*lost = errno;
	return fd;
}
#endif

#endif
