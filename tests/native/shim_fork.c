/* SPDX-License-Identifier: MIT */
/* The child of a fork that comes while another thread fills the shim's table of real functions: nothing there will ever be
 * finished by that thread. The table's page is read-only, so that the thread stops at its first word. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define dlopen(name, flags) ((void *)1)
#include "../../clients/shim/shim.h"
extern struct real real __attribute__((section(".data.table"), aligned(4096)));
#include "../../clients/shim/real.c"
static char behind[4096] __attribute__((section(".data.table"), aligned(4096), used)) = { 1 };

static sem_t has_stopped, may_go_on;

bool elf_find_object(const char *soname, struct elf_object *out)
{
	(void)soname;
	*out = (struct elf_object){ 1, 2, 3, NULL };
	return true;
}

bool elf_find_early(const char *soname, struct elf_object *out)
{
	return elf_find_object(soname, out);
}

void *elf_find_symbol(const struct elf_object *object, const char *name)
{
	(void)object;
	return (void *)(uintptr_t)name;
}

int mpsd_driver_load(struct mpsd_driver *driver, void *(*find_one)(void *argument, const char *name), void *argument)
{
	(void)find_one;
	(void)argument;
	memset(driver, 1, sizeof(*driver));
	return 0;
}

static void protect(int mode)
{
	if (mprotect(&real, 4096, mode))
		_exit(4);
}

static void stop(int number)
{
	(void)number;
	sem_post(&has_stopped);
	while (sem_wait(&may_go_on) && errno == EINTR)
		;
	protect(PROT_READ | PROT_WRITE);
}

static void *load(void *unused)
{
	(void)unused;
	return real_load() ? &real : NULL;
}

int main(void)
{
	struct sigaction action = { .sa_handler = stop };
	pthread_t thread;
	void *loaded;
	int status;
	pid_t child;

	_Static_assert(sizeof(real) <= 4096, "on one page");
	sem_init(&has_stopped, 0, 0);
	sem_init(&may_go_on, 0, 0);
	sigaction(SIGSEGV, &action, NULL);
	protect(PROT_READ);
	pthread_create(&thread, NULL, load, NULL);
	sem_wait(&has_stopped);
	child = fork();
	if (child == 0) {
		alarm(5);
		protect(PROT_READ | PROT_WRITE);
		_exit(real_load() && real.has_vmm && real.cuMemAlloc_v2 && real_is_driver((void *)2) ? 0 : 1);
	}
	waitpid(child, &status, 0);
	sem_post(&may_go_on);
	pthread_join(thread, &loaded);
	if (WIFSIGNALED(status))
		printf("the child: signal %d\n", WTERMSIG(status));
	else
		printf("the child: %d, the parent: %d\n", WEXITSTATUS(status), !(loaded && real.cuMemAlloc_v2));
	return 0;
}
