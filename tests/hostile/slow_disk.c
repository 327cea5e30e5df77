/* Preloaded: fsync(2) and fdatasync(2) take a tenth of a second, as on a disk that others keep busy.  In mpsd itself, and not in
 * the programs that it starts, each write(2) to a file, and each name that is made, changed or removed, takes as long. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool is_mpsd;

__attribute__((constructor)) static void begin(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		is_mpsd |= strcmp(argv[i], "serve") == 0;
}

static void wait_for_the_disk(void)
{
	struct timespec tenth = {.tv_nsec = 100000000};

	nanosleep(&tenth, NULL);
}

static void wait_in_mpsd(void)
{
	if (is_mpsd)
		wait_for_the_disk();
}

int fsync(int fd)
{
	wait_for_the_disk();
	return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	wait_for_the_disk();
	return (int)syscall(SYS_fdatasync, fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
	struct stat found;

	if (is_mpsd && fstat(fd, &found) == 0 && S_ISREG(found.st_mode))
		wait_for_the_disk();
	return syscall(SYS_write, fd, data, size);
}

int rename(const char *from, const char *to)
{
	wait_in_mpsd();
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
	wait_in_mpsd();
	return (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
	wait_in_mpsd();
	return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int at, const char *path, mode_t mode)
{
	wait_in_mpsd();
	return (int)syscall(SYS_mkdirat, at, path, mode);
}

int rmdir(const char *path)
{
	wait_in_mpsd();
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int unlink(const char *path)
{
	wait_in_mpsd();
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int at, const char *path, int flags)
{
	wait_in_mpsd();
	return (int)syscall(SYS_unlinkat, at, path, flags);
}
