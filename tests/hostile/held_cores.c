/* As if a user held the lock of the directory of core dumps: a call that changes it does not return.
 * Preloaded; HELD_CALL says which one. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_if_held(const char *call, const char *path, const char *held_path)
{
	const char *held = getenv("HELD_CALL");

	if (held && !strcmp(held, call) && !strcmp(path, held_path))
		for (;;)
			pause();
}

int mkdirat(int directory, const char *path, mode_t mode)
{
	wait_if_held("mkdir", path, "kept");
	return (int)syscall(SYS_mkdirat, directory, path, mode);
}

int unlinkat(int directory, const char *path, int flags)
{
	wait_if_held("rmdir", path, "cores/kept");
	wait_if_held("unlink", path, "core.1");
	return (int)syscall(SYS_unlinkat, directory, path, flags);
}
