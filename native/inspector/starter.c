/* SPDX-License-Identifier: MIT */
/* Starts processes that are children of mpsd's, so that mpsd can wait for them, and that have none of its descriptors. */
#include "../include/mpsd_users.h"
#include "inspector.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_WORDS = 4096 };

/* fork(2), but of mpsd.  This process has one thread, so that the child can use all of libc. */
static pid_t fork_from_parent(void)
{
	return (pid_t)syscall(SYS_clone, (unsigned long)(CLONE_PARENT | SIGCHLD), 0, 0, 0, 0);
}

int reader_start(int end, void (*serve)(void))
{
	pid_t pid = fork_from_parent();

	if (pid)
		return pid < 0 ? -errno : 0;
	signal(SIGCHLD, SIG_DFL);
	if (dup2(end, REQUESTS_FD) < 0)
		_exit(2);
	close(end); /* mpsd's end is closed last, and then `serve` returns */
	send_status(REQUESTS_FD, 0, (uint32_t)getpid());
	serve();
	_exit(0);
}

/* Split the words into variables and arguments, both ended by NULL.  0; -EINVAL without a program; -E2BIG. */
static int split(const struct question *question, char *variables[], char *arguments[])
{
	int variable_count = 0, argument_count = 0;

	for (const char *word = question->words, *end = word + question->words_size; word < end; word += strlen(word) + 1) {
		if (variable_count + argument_count == MOST_WORDS)
			return -E2BIG;
		if (*word == '/' || argument_count)
			arguments[argument_count++] = (char *)word;
		else
			variables[variable_count++] = (char *)word;
	}
	variables[variable_count] = arguments[argument_count] = NULL;
	return argument_count ? 0 : -EINVAL;
}

/* -errno; does not return if the program was executed. */
static int become(const struct question *question, char *variables[], char *arguments[])
{
	uint32_t uid = question->head.uid;
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	close(REQUESTS_FD);
	for (int i = 0; i < MOST_PASSED; i++) /* their own numbers are higher: 0 to 3 were in use when they came */
		if (question->passed[i] >= 0 && dup2(question->passed[i], i) < 0)
			return -errno;
	if (uid != MPSD_INSPECTOR_SAME_USER &&
	    (setgroups(0, NULL) || setresgid(MPSD_NO_GROUP, MPSD_NO_GROUP, MPSD_NO_GROUP) || setresuid(uid, uid, uid)))
		return -errno;
	execve(arguments[0], arguments, variables);
	return -errno;
}

int program_start(const struct question *question, int end)
{
	static char *variables[MOST_WORDS + 1], *arguments[MOST_WORDS + 1];
	int rc = split(question, variables, arguments);
	pid_t pid;

	if (rc || question->passed[2] < 0)
		return rc ? rc : -EBADF;
	pid = fork_from_parent();
	if (pid)
		return pid < 0 ? -errno : 0;
	if (send_status(end, 0, (uint32_t)getpid()))
		send_status(end, become(question, variables, arguments), 0);
	_exit(127);
}
