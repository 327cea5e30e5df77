/* SPDX-License-Identifier: MIT */
/* Interpreter: choose the Python that runs the daemon, and its argv[0].
 *
 * Callers look for the basename nvidia-cuda-mps-control in /proc/PID/cmdline, and CPython looks for pyvenv.cfg in the directory
 * of argv[0] and above. A name that need not exist, in the interpreter's own directory, satisfies both, without PATH or any
 * other variable. */
#include "control.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifndef MPSD_PYTHON_DEFAULT
#define MPSD_PYTHON_DEFAULT "/opt/mpsd/venv/bin/python3"
#endif

/* snprintf that reports whether the text fitted. */
#define FITS(out, ...) (snprintf((out), sizeof(out), __VA_ARGS__) < (int)sizeof(out))

/* Our own directory, without a final slash, symbolic links resolved.  0, or -errno. */
static int own_directory(char out[PATH_MAX])
{
	const char *named = (const char *)getauxval(AT_EXECFN); /* without /proc */

	if (!realpath("/proc/self/exe", out) && !(named && realpath(named, out)))
		return -errno;
	*strrchr(out, '/') = '\0';
	return 0;
}

/* The interpreter of the virtual environment that we are installed in.  Whether we are in one. */
static bool beside_us(struct interpreter *out, char directory[PATH_MAX])
{
	char marker[PATH_MAX + 16];

	if (own_directory(directory) != 0)
		return false;
	snprintf(marker, sizeof(marker), "%s/../pyvenv.cfg", directory);
	return access(marker, F_OK) == 0 && FITS(out->path, "%s/python3", directory);
}

/* A relative MPSD_PYTHON is made absolute: a daemon changes its directory.  0, or -errno. */
static int absolute(struct interpreter *out, const char *named)
{
	char here[PATH_MAX];

	if (named[0] == '/')
		return FITS(out->path, "%s", named) ? 0 : -ENAMETOOLONG;
	if (!getcwd(here, sizeof(here)))
		return -errno;
	return FITS(out->path, "%s/%s", here, named) ? 0 : -ENAMETOOLONG;
}

/* Fills *out.  0, or -errno and in `why` what was looked for and where, a line without its end. */
int interpreter_find(struct interpreter *out, char *why, size_t why_bytes)
{
	const char *named = getenv("MPSD_PYTHON");
	char directory[PATH_MAX] = "";
	int rc = 0;

	if (named && *named) {
		rc = absolute(out, named);
		if (rc == 0 && access(out->path, X_OK) != 0)
			rc = -errno;
		snprintf(why, why_bytes, "MPSD_PYTHON=%s: %s", named, strerror(-rc));
	} else {
		bool installed = beside_us(out, directory);

		if (!installed)
			strcpy(out->path, MPSD_PYTHON_DEFAULT);
		if (access(out->path, X_OK) != 0)
			rc = -errno;
		if (installed)
			snprintf(why, why_bytes, "%s (the virtual environment of this program): %s",
				 out->path, strerror(-rc));
		else
			snprintf(why, why_bytes,
				 "%s: %s (MPSD_PYTHON is not set, and %s/.. is no virtual environment)",
				 out->path, strerror(-rc), directory[0] ? directory : "/");
	}
	if (rc)
		return rc;
	strcpy(out->argv0, out->path); /* as long: the lengths are checked next */
	*strrchr(out->argv0, '/') = '\0';
	if (strlen(out->argv0) + sizeof("/nvidia-cuda-mps-control") > sizeof(out->argv0)) {
		snprintf(why, why_bytes, "%s: %s", out->path, strerror(ENAMETOOLONG));
		return -ENAMETOOLONG;
	}
	strcat(out->argv0, "/nvidia-cuda-mps-control");
	return 0;
}
