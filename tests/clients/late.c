/* Run a client that is late once, as a hostile client could be:
 *
 *   late NUMBER SECONDS PROGRAM [ARGUMENTS]
 *
 * The client's NUMBER-th call of connect, sendmsg or recvmsg begins SECONDS after it would have begun.  A seccomp filter tells this
 * program of these calls (seccomp_unotify(2)); neither their arguments nor their data are read.
 */

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int installed(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvmsg, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* Let each call go on; the `number`-th one after `seconds`.  Returns when the client has ended. */
static void supervise(int listener, int number, unsigned int seconds)
{
	struct seccomp_notif_sizes sizes;
	struct seccomp_notif *call;
	struct seccomp_notif_resp *answer;

	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes))
		exit(2);
	call = calloc(1, sizes.seccomp_notif);
	answer = calloc(1, sizes.seccomp_notif_resp);
	for (int seen = 0; call && answer;) {
		struct pollfd waiting = { listener, POLLIN, 0 };

		if (poll(&waiting, 1, -1) != 1 || !(waiting.revents & POLLIN))
			return; /* POLLHUP: the client has ended */
		memset(call, 0, sizes.seccomp_notif);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, call))
			continue; /* the caller was interrupted */
		if (++seen == number) {
			fprintf(stderr, "late: call %d is %s\n", number,
				call->data.nr == SYS_connect ? "connect" : call->data.nr == SYS_sendmsg ? "sendmsg" : "recvmsg");
			sleep(seconds);
		}
		memset(answer, 0, sizes.seccomp_notif_resp);
		answer->id = call->id;
		answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
	}
}

/* The client's own process stays the one that was started; its child looks after it. */
int main(int count, char **words)
{
	int to_child[2], to_parent[2], listener, copied = 0;

	if (count < 4 || pipe(to_child) || pipe(to_parent))
		return 2;
	if (fork() == 0) {
		int parent = (int)syscall(SYS_pidfd_open, getppid(), 0);

		close(to_child[1]);
		dup2(STDERR_FILENO, STDOUT_FILENO);
		if (read(to_child[0], &listener, sizeof(listener)) != sizeof(listener))
			return 2;
		copied = (int)syscall(SYS_pidfd_getfd, parent, listener, 0);
		if (copied < 0 || write(to_parent[1], &copied, sizeof(copied)) != sizeof(copied))
			return 2;
		supervise(copied, atoi(words[1]), (unsigned int)atoi(words[2]));
		return 0;
	}
	listener = installed();
	if (listener < 0 || write(to_child[1], &listener, sizeof(listener)) != sizeof(listener) ||
	    read(to_parent[0], &copied, sizeof(copied)) != sizeof(copied))
		return 2;
	for (int each = 0; each < 2; each++) {
		close(to_child[each]);
		close(to_parent[each]);
	}
	close(listener);
	execv(words[3], words + 3);
	perror(words[3]);
	return 127;
}
