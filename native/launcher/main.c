/* Starts a vendor control daemon with a pipe directory that processes outside of its mount namespace cannot reach.
 *
 *   mpsd-launcher [--uid UID] HOME PROGRAM [ARGUMENT]...
 *   mpsd-launcher --try DIRECTORY          may a file system be mounted there?  Changes nothing
 *
 * HOME is the domain's directory, with `pipe` and `log` in it.  On the host only mpsd can enter it (0700).  The vendor's
 * servers run
 * as their clients' users and connect to HOME/pipe/control by its path (measured, driver 580), so that they have to pass it.
 * In the
 * new namespace an empty file system of mode 0711 lies over HOME, with the real `pipe` and `log` mounted into it: all paths are
 * the same inside and outside, servers reach the socket, and other processes of their users do not.
 *
 * Exit status: the program's; 125 if this kernel or container does not allow the mounts; 126 for any other failure.  Messages
 * of
 * this program itself begin with "mpsd-launcher: ".  It does not depend on other programs or on PATH. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../include/mpsd_users.h"

enum { NOT_ALLOWED = 125, FAILED = 126, FIRST_OTHER_FD = 3 };

#define CLOSE_RANGE_ON_EXEC (1U << 2) /* linux/close_range.h, Linux 5.11 */

/* Two directories and nothing else are ever made in it. */
static const char cover_options[] = "mode=0711,size=64k,nr_inodes=16";

struct arguments {
	const char *home;
	char **command;   /* PROGRAM ARGUMENT..., ends with NULL */
	uid_t uid;        /* of the program */
	bool changes_uid;
	bool only_tries;
};

static _Noreturn void fail(int status, const char *what, const char *why)
{
	fprintf(stderr, "mpsd-launcher: %s: %s\n", what, why);
	exit(status);
}

/* Exit 125 if a container, a security module or an old kernel refuses the mount: the domain then starts without a namespace.
 * Exit 126 for any other reason, such as lack of memory. */
static _Noreturn void cannot_mount(const char *what)
{
	bool is_refusal = errno == EPERM || errno == EACCES || errno == EINVAL || errno == ENOSYS || errno == ENODEV;

	fail(is_refusal ? NOT_ALLOWED : FAILED, what, strerror(errno));
}

static struct arguments parse_arguments(int argc, char **argv)
{
	struct arguments out = { 0 };
	int next = 1;

	if (argc == 3 && strcmp(argv[1], "--try") == 0)
		return (struct arguments){ .home = argv[2], .only_tries = true };
	if (argc > 3 && strcmp(argv[1], "--uid") == 0) {
		char *end;
		unsigned long uid = strtoul(argv[2], &end, 10);

		if (end == argv[2] || *end || uid >= (uid_t)-1)
			fail(FAILED, argv[2], "a user id was expected");
		out.uid = (uid_t)uid;
		out.changes_uid = true;
		next = 3;
	}
	if (argc < next + 2 || argv[next][0] != '/' || argv[next + 1][0] != '/')
		fail(FAILED, "arguments", "usage: mpsd-launcher [--uid UID] HOME PROGRAM [ARGUMENT]...; both paths begin with /");
	out.home = argv[next];
	out.command = argv + next + 1;
	return out;
}

/* Descriptors that mpsd left open must not reach the vendor's program. */
static void close_others_on_exec(void)
{
	if (syscall(SYS_close_range, FIRST_OTHER_FD, ~0U, CLOSE_RANGE_ON_EXEC) != 0)
		for (long fd = FIRST_OTHER_FD, end = sysconf(_SC_OPEN_MAX); fd < end; fd++)
			(void)fcntl((int)fd, F_SETFD, FD_CLOEXEC); /* Linux before 5.11 */
}

/* Mounts of the host still propagate into the namespace, so that file systems unmounted on the host are released; mounts made
 * here do not propagate out. */
static void enter_namespace(void)
{
	if (unshare(CLONE_NEWNS) != 0)
		cannot_mount("a mount namespace cannot be made");
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
		cannot_mount("the mounts cannot be separated from those of the host");
}

static int open_directory(int parent, const char *name)
{
	int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		fail(FAILED, name, strerror(errno));
	return fd;
}

static const char *path_of(int fd, char *path, size_t size)
{
	snprintf(path, size, "/proc/self/fd/%d", fd);
	return path;
}

static void cover(int directory)
{
	char path[32];

	if (mount("mpsd", path_of(directory, path, sizeof(path)), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, cover_options) != 0)
		cannot_mount("a file system cannot be mounted over the domain's directory");
}

/* Mounts `real` as `name` into the covering file system. */
static void show(int covering, const char *name, int real)
{
	char from[32], to[32];
	int place;

	if (mkdirat(covering, name, 0711) != 0)
		fail(FAILED, name, strerror(errno));
	place = open_directory(covering, name);
	if (mount(path_of(real, from, sizeof(from)), path_of(place, to, sizeof(to)), NULL, MS_BIND, NULL) != 0)
		cannot_mount("the domain's directories cannot be mounted");
	close(place);
}

static void hide(const char *home)
{
	int real = open_directory(AT_FDCWD, home);
	int pipe_directory = open_directory(real, "pipe"), log_directory = open_directory(real, "log"), covering;
	struct statfs found;

	cover(real);
	covering = open_directory(AT_FDCWD, home); /* what lies on top now */
	if (fstatfs(covering, &found) != 0 || found.f_type != TMPFS_MAGIC)
		fail(FAILED, home, "its cover is not there");
	show(covering, "pipe", pipe_directory);
	show(covering, "log", log_directory);
}

static void become(uid_t uid)
{
	if (setgroups(0, NULL) != 0 || setresgid(MPSD_NO_GROUP, MPSD_NO_GROUP, MPSD_NO_GROUP) != 0 ||
	    setresuid(uid, uid, uid) != 0)
		fail(FAILED, "the user cannot be changed", strerror(errno));
}

int main(int argc, char **argv)
{
	struct arguments arguments = parse_arguments(argc, argv);
	char what[512];

	close_others_on_exec();
	enter_namespace();
	if (arguments.only_tries) {
		cover(open_directory(AT_FDCWD, arguments.home));
		return 0;
	}
	hide(arguments.home);
	if (arguments.changes_uid)
		become(arguments.uid);
	execv(arguments.command[0], arguments.command);
	snprintf(what, sizeof(what), "%s cannot be run", arguments.command[0]);
	fail(FAILED, what, strerror(errno));
}
