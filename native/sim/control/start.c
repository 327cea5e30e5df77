/* How the daemon comes up: directories, the lock, the files of the pipe directory. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { NO_DEVICE_STATUS = 100 };

static void path_in(const struct control *control, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s", control->pipe, name);
}

static bool has_device(void)
{
	struct machine_view all = machine_all();
	enum machine_view_error error;

	return machine_visible(&all, getenv("CUDA_VISIBLE_DEVICES"), &error).count > 0;
}

/* The mode of `control` does not depend on the umask, that of `control_privileged` does (measured). */
static int listen_on(const struct control *control, const char *name, bool for_everybody)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, on = 1;

	if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", control->pipe, name) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	(void)unlink(address.sun_path);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    (for_everybody && chmod(address.sun_path, 0666) < 0) || listen(fd, 128) < 0)
		return -errno;
	return fd;
}

/* Writable by all: server processes of other users and clients log through it. */
static int open_fifo(const struct control *control)
{
	char path[160];

	path_in(control, "log", path, sizeof(path));
	(void)unlink(path);
	if (mkfifo(path, 0777) < 0 || chmod(path, 0777) < 0)
		return -errno;
	return open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
}

static int write_pid(const struct control *control)
{
	char path[160];
	int fd;

	path_in(control, "nvidia-cuda-mps-control.pid", path, sizeof(path));
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0666);
	dprintf(fd, "%d", (int)getpid());
	return close(fd);
}

static int take_lock(struct control *control)
{
	char path[160];

	path_in(control, "control_lock", path, sizeof(path));
	control->lock = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (control->lock < 0)
		return -errno;
	(void)fchmod(control->lock, 0666);
	return flock(control->lock, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
}

/* The refused one leaves a line in the running one's server.log. */
static void tell_running(const struct control *control)
{
	char path[160], text[300], line[400];
	int fd;

	path_in(control, "log", path, sizeof(path));
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	snprintf(text, sizeof(text), "Using log directory: %s", control->logs);
	log_put(fd, line, log_format(line, sizeof(line), "Other", text));
	if (fd >= 0)
		close(fd);
}

static int prepare_directories(struct control *control)
{
	const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
	const char *warning = "Warning: Failed writing log files to directory [%s]. No logs will be available.\n";
	bool too_long = strlen(link_pipe_directory()) >= sizeof(control->pipe) - sizeof("/control_privileged");

	snprintf(control->pipe, sizeof(control->pipe), "%s", link_pipe_directory());
	snprintf(control->logs, sizeof(control->logs), "%s", logs && *logs ? logs : "/var/log/nvidia-mps");
	if (!control->foreground && mkdir(control->logs, 0700) < 0 && access(control->logs, W_OK) < 0)
		printf(warning, control->logs);
	else if (control->foreground)
		(void)mkdir(control->logs, 0700);
	if (too_long)
		return 1;
	if (mkdir(control->pipe, 0777) == 0)
		(void)chmod(control->pipe, 0777);
	if (access(control->pipe, W_OK | X_OK) == 0)
		return 0;
	printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", control->pipe);
	if (!control->foreground && access(control->logs, W_OK) < 0)
		printf(warning, control->logs);
	return 1;
}

static int watch_children(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int start_daemon(struct control *control)
{
	signal(SIGPIPE, SIG_IGN);
	link_more_descriptors();
	mishap_at("start");
	if (mishap("refuse", "start", NULL))
		return 1;
	if (!has_device())
		return NO_DEVICE_STATUS;
	if (prepare_directories(control) != 0)
		return 1;
	if (take_lock(control) < 0) {
		printf("An instance of this daemon is already running\n");
		tell_running(control);
		return 1;
	}
	control->owner = getuid();
	control->defaults.percent = 100.0;
	control->peers = calloc(DAEMON_PEERS, sizeof(*control->peers));
	control->fifo = open_fifo(control);
	control->children = watch_children();
	control->listener = listen_on(control, "control", true);
	control->privileged = listen_on(control, "control_privileged", false);
	(void)log_open(control);
	if (!control->peers || control->fifo < 0 || control->children < 0 || control->listener < 0 ||
	    control->privileged < 0 || write_pid(control) < 0)
		return 1;
	log_control(control, "Starting control daemon using socket %s/control", control->pipe);
	log_control(control, "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", control->pipe);
	log_control(control, "CUDA MPS Control binary version: 13000");
	return 0;
}

void stop_daemon(struct control *control)
{
	char path[160];

	log_from_fifo(control);
	log_control(control, "Exit with status %d", control->failed);
	path_in(control, "log", path, sizeof(path));
	(void)unlink(path);
	path_in(control, "nvidia-cuda-mps-control.pid", path, sizeof(path));
	(void)unlink(path);
	for (unsigned i = 0; i < control->peer_count; i++)
		if (control->peers[i].role == PEER_QUITTER)
			link_send(control->peers[i].fd, LINK_END, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
	exit(control->failed);
}
