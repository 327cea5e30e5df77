/* SPDX-License-Identifier: MIT */
/* The sentinel's CUDA client: it makes a context, uses it once, and is then stopped for the rest of its life. */
#include "../include/mpsd_users.h"
#include "sentinel.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424 /* on every architecture */
#define SYS_pidfd_open 434
#endif

enum { WAIT_MS = 5000, SM_COUNT = 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */, NOT_FOUND = 500 /* CUresult */ };

static void *find(void *library, const char *name)
{
	return dlsym(library, name);
}

/* The allocation and the fill make the driver set up the parts that it defers to a context's first work. */
static int32_t make_context(struct client_context *out)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int32_t (*init)(unsigned), (*get)(int *, int), (*attribute)(int *, int, int), (*retain)(void **, int);
	int32_t (*set_current)(void *), (*allocate)(uint64_t *, size_t), (*fill)(uint64_t, unsigned char, size_t), (*wait)(void);
	int32_t code = NOT_FOUND;
	int device, sms = 0;
	uint64_t memory;

	if (!library || !(init = find(library, "cuInit")) || !(get = find(library, "cuDeviceGet")) ||
	    !(attribute = find(library, "cuDeviceGetAttribute")) || !(retain = find(library, "cuDevicePrimaryCtxRetain")) ||
	    !(set_current = find(library, "cuCtxSetCurrent")) || !(allocate = find(library, "cuMemAlloc_v2")) ||
	    !(fill = find(library, "cuMemsetD8_v2")) || !(wait = find(library, "cuCtxSynchronize")))
		return code;
	if ((code = init(0)) || (code = get(&device, 0)) || (code = attribute(&sms, SM_COUNT, device)) ||
	    (code = retain(&context, device)) || (code = set_current(context)) || (code = allocate(&memory, 4096)) ||
	    (code = fill(memory, 0, 4096)) || (code = wait()))
		return code;
	out->sms = (uint32_t)sms;
	out->is_simulated = find(library, "mpsd_sim_rm_ioctl") != NULL;
	return 0;
}

/* A server serves the clients of one user. */
static bool become(uid_t uid)
{
	struct passwd *user;
	gid_t gid;

	if (uid == geteuid())
		return true;
	user = getpwuid(uid);
	gid = user ? user->pw_gid : MPSD_NO_GROUP;
	/* Through its /proc directory the user would enter the domain's mount namespace (docs/decisions/028). */
	return setgroups(0, NULL) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0 &&
	       prctl(PR_SET_DUMPABLE, 0) == 0;
}

static _Noreturn void live(pid_t watcher, uid_t uid, int pipe)
{
	struct client_context context = { 0 };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (!become(uid)) /* before prctl(): a change of user clears what that sets */
		_exit(2);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != watcher)
		_exit(2);
	context.code = make_context(&context);
	if (write(pipe, &context, sizeof(context)) != sizeof(context) || context.code)
		_exit(1);
	for (;;)
		pause();
}

int client_start(uid_t uid, struct client *out)
{
	pid_t watcher = getpid();
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	out->pid = fork();
	if (out->pid == 0) {
		syscall(SYS_close_range, 3, ends[1] - 1, 0);
		syscall(SYS_close_range, ends[1] + 1, ~0U, 0);
		live(watcher, uid, ends[1]);
	}
	rc = -errno;
	close(ends[1]);
	if (out->pid < 0) {
		close(ends[0]);
		return rc;
	}
	out->pipe = ends[0];
	out->pidfd = (int)syscall(SYS_pidfd_open, out->pid, 0);
	return out->pidfd < 0 ? -errno : 0;
}

/* Whether one of `states` (WSTOPPED, WEXITED) is reached in time.  It is our child, so that its pid stays its own. */
static bool reaches(const struct client *client, int states)
{
	struct timespec pause_time = { .tv_nsec = 1000000 };

	for (int i = 0; i < WAIT_MS; i++) {
		siginfo_t info = { 0 };

		if (waitid(P_PID, (id_t)client->pid, &info, states | WNOHANG) != 0)
			return false;
		if (info.si_pid)
			return true;
		nanosleep(&pause_time, NULL);
	}
	return false;
}

int client_stop(const struct client *client)
{
	if (syscall(SYS_pidfd_send_signal, client->pidfd, SIGSTOP, NULL, 0) != 0)
		return -errno;
	return reaches(client, WSTOPPED) ? 0 : -ETIMEDOUT;
}

void client_kill(const struct client *client)
{
	syscall(SYS_pidfd_send_signal, client->pidfd, SIGKILL, NULL, 0);
}

void client_wait(const struct client *client)
{
	reaches(client, WEXITED);
}

/* Reap other children, whose deaths mean nothing, until the client's is the next. */
bool client_is_lost(const struct client *client)
{
	siginfo_t info = { 0 };

	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid && info.si_pid != client->pid) {
		waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
		info.si_pid = 0;
	}
	info.si_pid = 0;
	return waitid(P_PID, (id_t)client->pid, &info, WEXITED | WCONTINUED | WNOHANG | WNOWAIT) == 0 && info.si_pid;
}
