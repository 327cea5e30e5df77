/* Preloaded into a test client, as a hostile client could do it to itself: sleeps LATE_SECONDS after the LATE_AFTER'th message
 * with a descriptor has arrived, so that the client uses what it got later than any other client would. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int number(const char *name)
{
	const char *text = getenv(name);

	return text ? atoi(text) : 0;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*next)(int, struct msghdr *, int);
	static int seen;
	struct cmsghdr *control;
	ssize_t got;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "recvmsg");
	got = next(fd, message, flags);
	control = got >= 0 ? CMSG_FIRSTHDR(message) : NULL;
	if (control && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS && ++seen == number("LATE_AFTER")) {
		fprintf(stderr, "late: sleeps after descriptor %d\n", seen);
		sleep((unsigned int)number("LATE_SECONDS"));
	}
	return got;
}
