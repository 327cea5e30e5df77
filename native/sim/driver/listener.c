/* The thread that reads the server's messages: that work has failed, or, if the server hangs up, that it died. */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Protects `watched` and `count`, and a descriptor from being closed while it is read.  Contexts may be
 * locked while it is held, not the other way round. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pollfd watched[DRIVER_LINKS];
static unsigned count;
static int wake[2] = { -1, -1 };

static void poke(void)
{
	while (write(wake[1], "", 1) < 0 && errno == EINTR)
		;
}

void listener_watch(int fd)
{
	pthread_mutex_lock(&lock);
	if (count < DRIVER_LINKS)
		watched[count++] = (struct pollfd){ fd, POLLIN, 0 };
	pthread_mutex_unlock(&lock);
	poke();
}

static bool is_watched(int fd)
{
	for (unsigned i = 0; i < count; i++)
		if (watched[i].fd == fd)
			return true;
	return false;
}

static void forget(int fd)
{
	for (unsigned i = 0; i < count; i++)
		if (watched[i].fd == fd)
			watched[i] = watched[--count];
}

/* Afterwards the descriptor may be closed.  The thread must leave poll(), which keeps it open. */
void listener_forget(int fd)
{
	pthread_mutex_lock(&lock);
	forget(fd);
	pthread_mutex_unlock(&lock);
	poke();
}

/* An error of the process itself, or of the one context. */
static void failed(int fd, int error)
{
	if (error == CUDA_ERROR_MPS_RPC_FAILURE)
		driver.lost = true;
	else if (error)
		driver.doomed = error;
	if (fd == driver.link.fd || error == CUDA_ERROR_MPS_RPC_FAILURE)
		context_fail_all(error);
	else
		context_fail_on(fd, error);
}

static void hear(int fd, struct link_packet *packet)
{
	int rc = link_receive(fd, packet, 0);

	if (rc == 0 && packet->fd >= 0)
		close(packet->fd);
	if (rc == 0 && packet->head.kind == LINK_FAULTED) {
		coredump_heard((enum fault_class)packet->head.flags);
		failed(fd, packet->head.status);
	} else if (rc < 0 && rc != -ETIMEDOUT) {
		forget(fd);
		failed(fd, CUDA_ERROR_MPS_RPC_FAILURE);
	}
}

static void hear_all(const struct pollfd *items, unsigned known, struct link_packet *packet)
{
	char drain[64];

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < known; i++)
		if (items[i].revents && items[i].fd == wake[0])
			(void)!read(wake[0], drain, sizeof(drain));
		else if (items[i].revents && is_watched(items[i].fd))
			hear(items[i].fd, packet); /* never blocks: another may have the number by now */
	pthread_mutex_unlock(&lock);
}

static void *listen_for_ever(void *unused)
{
	struct link_packet *packet = malloc(sizeof(*packet));
	struct pollfd items[DRIVER_LINKS];

	(void)unused;
	while (packet) { /* for ever: until the process ends */
		unsigned known;

		pthread_mutex_lock(&lock);
		known = count;
		memcpy(items, watched, known * sizeof(*items));
		pthread_mutex_unlock(&lock);
		if (poll(items, known, -1) > 0)
			hear_all(items, known, packet);
	}
	return NULL;
}

void listener_start(void)
{
	pthread_t thread;
	sigset_t all, before;

	if (pipe2(wake, O_CLOEXEC) < 0)
		return;
	listener_watch(wake[0]);
	listener_watch(driver.link.fd);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the program's own */
	if (pthread_create(&thread, NULL, listen_for_ever, NULL) == 0)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
