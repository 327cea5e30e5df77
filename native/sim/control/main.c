/* nvidia-cuda-mps-control of the simulator: parse the options and run as one of its two programs. */
#include "daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct control control;

static int serve(void)
{
	int status = start_daemon(&control);

	if (status)
		return status;
	run_loop(&control);
	return 0;
}

/* The parent waits until the child listens; the child sends its exit status over the pipe. */
static int daemonise(void)
{
	int ready[2];
	unsigned char status = 1;
	pid_t child;

	if (pipe(ready) < 0 || (child = fork()) < 0)
		return 1;
	if (child > 0) {
		close(ready[1]);
		while (read(ready[0], &status, 1) < 0 && errno == EINTR)
			;
		return status;
	}
	close(ready[0]);
	setsid();
	status = (unsigned char)start_daemon(&control);
	fflush(stdout);
	if (!status) {
		(void)!freopen("/dev/null", "r+", stdin);
		dup2(STDIN_FILENO, STDOUT_FILENO);
		dup2(STDIN_FILENO, STDERR_FILENO);
	}
	while (write(ready[1], &status, 1) < 0 && errno == EINTR)
		;
	close(ready[1]);
	if (status)
		exit(status);
	run_loop(&control);
	return 0;
}

static bool is_option(const char *word, const char *letter, const char *name)
{
	return strcmp(word, letter) == 0 || strcmp(word, name) == 0;
}

int main(int argc, char **argv)
{
	bool background = false;

	for (int i = 1; i < argc; i++) {
		if (is_option(argv[i], "-h", "--help")) {
			fputs(help_text, stdout);
			return 0;
		} else if (is_option(argv[i], "-v", "--version")) {
			fputs(version_text, stdout);
			return 0;
		} else if (is_option(argv[i], "-d", "--daemon")) {
			background = true;
		} else if (is_option(argv[i], "-f", "--forground") || strcmp(argv[i], "--foreground") == 0) {
			control.foreground = true;
		} else if (is_option(argv[i], "-M", "--multiuser-server") || strcmp(argv[i], "-multiuser-server") == 0) {
			control.multiuser = true;
		} else if (is_option(argv[i], "-q", "--ready-devices")) {
			continue;
		} else if (argv[i][0] == '-') { /* the vendor's prints a NUL here */
			fwrite("Unrecognized option \0\n", 1, 22, stdout);
			fputs(help_text, stdout);
			return 0;
		}
	}
	if (background)
		return daemonise();
	return control.foreground ? serve() : run_frontend();
}
