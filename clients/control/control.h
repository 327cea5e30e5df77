/* SPDX-License-Identifier: MIT */
/* Shared declarations of the front end.  It forwards commands to mpsd, and interprets only `quit`. */
#ifndef MPSD_CONTROL_H
#define MPSD_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef MPSD_WAIT_SECONDS
#define MPSD_WAIT_SECONDS 60 /* to connect, for a reply, for a daemon to start; tests build with less */
#endif
#ifndef MPSD_EXIT_SECONDS
#define MPSD_EXIT_SECONDS 10 /* for the daemon's process to be gone after an obeyed `quit` */
#endif

#ifndef MPSD_END_SECONDS
#define MPSD_END_SECONDS 600 /* for the answer to `quit -t N` after N seconds: clients and domains are ended by then */
#endif

#define CONTROL_PIPE_DIRECTORY "/tmp/nvidia-mps"    /* the default of CUDA_MPS_PIPE_DIRECTORY */
#define CONTROL_LOG_DIRECTORY "/var/log/nvidia-mps" /* the default of CUDA_MPS_LOG_DIRECTORY */

/* ---- options.c: argv becomes a request; no output, no files ---- */

enum options_mode {
	OPTIONS_COMMANDS,   /* be the user interface: commands from arguments or stdin */
	OPTIONS_BACKGROUND, /* -d */
	OPTIONS_FOREGROUND, /* -f */
	OPTIONS_HELP,
	OPTIONS_VERSION,
	OPTIONS_UNKNOWN,    /* `unknown` names the word that was not understood */
};

struct options {
	enum options_mode mode;
	bool multiuser_server;
	bool ready_devices;
	bool static_partitioning;
	const char *unknown;
	char **command; /* borrowed from argv, NULL-terminated; NULL: read stdin */
};

void options_parse(int argc, char **argv, struct options *out);

/* ---- lines.c: bytes become lines; no I/O ---- */

#define LINES_LIMIT 4096 /* longest command, without its newline: what one datagram to the daemon may hold */

/* Called once a line. `text` holds its first bytes, borrowed for the call; `length` is the whole line's length, and a line over
 * LINES_LIMIT must be refused. A result other than 0 ends the feeding. */
typedef int lines_sink(void *context, const char *text, uint64_t length);

struct lines { /* all zero to begin with */
	char text[LINES_LIMIT + 1]; /* one more, for a CR that does not count */
	uint64_t length;            /* of the current line so far, dropped bytes included */
	char last;                  /* its last byte */
	bool open;                  /* a byte came since the last newline */
	bool cut;                   /* a NUL came: the rest of this line is dropped */
};

int lines_feed(struct lines *lines, const char *bytes, size_t count, lines_sink *sink, void *context);
int lines_finish(struct lines *lines, lines_sink *sink, void *context);

/* ---- quit.c: parse `quit`; no I/O ---- */

bool quit_parse(const char *command, size_t length, int64_t *seconds);

/* ---- visible.c: escape control characters; no I/O ---- */

size_t visible_length(const char *text, size_t count);

/* ---- output.c: print to stdout and stderr ---- */

#define INTERPRETER_PATH_BYTES 4096

struct output {
	bool is_lost; /* stdout or stderr could not be written; reported once */
};

void output_write(struct output *output, int fd, const char *bytes, size_t count);
void output_say(struct output *output, int fd, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- session.c: one connection to the daemon ---- */

struct session {
	int socket;
	int daemon_pid;    /* the listening process, to wait for its end; 0 if unknown */
	int status;        /* the last status that was not 0 */
	struct output output;
};

int session_open(struct session *session, const char *pipe_directory);
int session_run(struct session *session, const char *command, size_t length);
int session_close(struct session *session);

/* ---- start.c, interpreter.c, behalf.c: exec the daemon ---- */

struct interpreter {
	char path[INTERPRETER_PATH_BYTES];
	char argv0[INTERPRETER_PATH_BYTES]; /* in the same directory: see interpreter.c */
};

int behalf_clean(char *why, size_t why_bytes);
int interpreter_find(struct interpreter *out, char *why, size_t why_bytes);
int start_daemon(const struct options *options);

/* ---- help.c ---- */

extern const char help_marker[];
void help_print(void);
void help_print_version(void);

/* A directory variable; unset and empty are the same. */
const char *control_directory(const char *variable, const char *otherwise);
/* Milliseconds of the monotonic clock. */
int64_t control_now_ms(void);

#endif
