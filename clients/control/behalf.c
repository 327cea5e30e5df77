/* SPDX-License-Identifier: MIT */
/* Behalf: the settings that a daemon of root takes from the environment of the user for whom sudo runs it.
 *
 * sudo drops that environment, unless `sudo -E`, SETENV or env_keep lets it pass. Variables that name a program, a library or a
 * file that root would load are never taken from there, even if sudo lets all of them pass. */
#include "control.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define SYSTEM_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* Silently another configuration, another program, or a GPU in place of the simulator, would be worse than none. */
static const char *const refused[] = { "MPSD_PYTHON", "MPSD_CONFIG", "MPSD_BACKEND" };

/* Numbers, devices and directories, which the daemon judges by itself; nothing that is loaded or run. */
static const char *const kept[] = {
	"CUDA_MPS_", "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=", "CUDA_DEVICE_MAX_CONNECTIONS=", "SUDO_",
};

/* The user for whom sudo runs this program as root; NULL: not run by sudo. */
static const char *invoking_uid(void)
{
	const char *uid = getenv("SUDO_UID");

	if (geteuid() != 0 || !uid || !*uid || strcmp(uid, "0") == 0)
		return NULL;
	return uid;
}

static bool is_kept(const char *variable)
{
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		if (strncmp(variable, kept[i], strlen(kept[i])) == 0)
			return true;
	return false;
}

static void drop_variables(void)
{
	char **to = environ;

	for (char **from = environ; from && *from; from++)
		if (is_kept(*from))
			*to++ = *from;
	if (to)
		*to = NULL;
}

/* Makes the environment fit for the daemon.  0, or -EPERM and in `why` a line without its end. */
int behalf_clean(char *why, size_t why_bytes)
{
	const char *uid = invoking_uid();

	if (!uid)
		return 0;
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		if (!getenv(refused[i]))
			continue;
		snprintf(why, why_bytes,
			 "%s is set, and root does not take it from uid %s, for whom sudo runs this; "
			 "unset it, or in a shell of root's: env -u SUDO_UID %s=... nvidia-cuda-mps-control ...",
			 refused[i], uid, refused[i]);
		return -EPERM;
	}
	drop_variables();
	return setenv("PATH", SYSTEM_PATH, 1) == 0 ? 0 : -errno;
}
