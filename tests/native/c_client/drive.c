/* SPDX-License-Identifier: MIT */
/* drive: the C client, driven by lines on stdin; each answer is a line "RESULT WORDS", where RESULT is 0 or -errno.
 * One session and one arena at a time.  tests/native/c_client_drive.py speaks this protocol. */
#include <mpsd.h>

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#define MIB ((uint64_t)1 << 20)

static struct mpsd_session *session;
static struct mpsd_driver driver;
static struct mpsd_arena *arena;
static CUresult (*copy_in)(CUdeviceptr, const void *, size_t);
static CUresult (*copy_out)(void *, CUdeviceptr, size_t);

static void say(int rc, const char *words)
{
	printf("%d %s\n", rc, rc < 0 ? mpsd_error(session) : words);
	fflush(stdout);
}

static int open_context(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *calls[5], *context;
	const char *names[5] = { "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2" };
	CUresult (*init)(unsigned), (*retain)(void **, CUdevice), (*set)(void *);

	for (int i = 0; i < 5; i++)
		calls[i] = library ? dlsym(library, names[i]) : NULL;
	if (!calls[0])
		return -ENOENT;
	memcpy(&init, &calls[0], sizeof(init));
	memcpy(&retain, &calls[1], sizeof(retain));
	memcpy(&set, &calls[2], sizeof(set));
	memcpy(&copy_in, &calls[3], sizeof(copy_in));
	memcpy(&copy_out, &calls[4], sizeof(copy_out));
	if (init(0) || retain(&context, 0) || set(context))
		return -ENODEV;
	return mpsd_driver_load(&driver, NULL, NULL);
}

static int transfer(uint64_t address, uint64_t bytes, unsigned char seed, int is_check)
{
	unsigned char *data = malloc(bytes);
	int rc = 0;

	memset(data, seed, bytes);
	if (!is_check)
		rc = copy_in(address, data, bytes) ? -EFAULT : 0;
	else if (copy_out(data, address, bytes))
		rc = -EFAULT;
	for (uint64_t i = 0; is_check && rc == 0 && i < bytes; i++)
		rc = data[i] == seed ? 0 : -EILSEQ;
	free(data);
	return rc;
}

static int count_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = -3; /* "." and "..", and the directory itself */

	while (directory && readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* What a child may do with what its parent had: nothing, and at once.  kept: how many descriptors go with its arena; -1: any number. */
static void in_child(int kept)
{
	uint64_t address = 0;
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int call = mpsd_call(session, "health", NULL, 0, NULL, 0, 1, 0, NULL);
		int alloc = mpsd_arena_alloc(arena, 1, &address);
		int commit = mpsd_arena_commit(arena, NULL, 0);
		int before = count_descriptors();
		int close_it = mpsd_arena_close(arena);

		if (kept >= 0 && count_descriptors() != before - kept)
			_exit(2);
		mpsd_session_close(session);
		_exit(call == -ECHILD && alloc == -ECHILD && commit == -ECHILD && close_it == -ECHILD ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	say(WIFEXITED(status) ? WEXITSTATUS(status) : 255, "");
}

static int describe(void *words, const struct mpsd_allocation *one)
{
	char *at = (char *)words + strlen((char *)words);

	snprintf(at, 64, "0x%llx:%llu:%d%d ", (unsigned long long)one->address, (unsigned long long)(one->bytes / MIB),
		 one->is_committed, one->is_adopted);
	return strlen((char *)words) > 60000;
}

static void list(void)
{
	static char words[65536];

	words[0] = '\0';
	say(mpsd_arena_for_each(arena, describe, words), words);
}

static void layout(void)
{
	void *bytes = NULL;
	size_t count = 0;
	int rc = mpsd_arena_layout(arena, &bytes, &count);

	printf("%d %.*s\n", rc, (int)count, bytes ? (char *)bytes : "");
	fflush(stdout);
	free(bytes);
}

static int refuse_map(void *argument, uint64_t address, uint64_t bytes)
{
	(void)argument;
	(void)address;
	(void)bytes;
	return -EPERM;
}

static void open_session(const char *path)
{
	char why[256] = "";

	session = mpsd_session_open(path, "drive", why, sizeof(why));
	printf("%d %s\n", session ? 0 : -errno, why);
	fflush(stdout);
}

/* -- words ---------------------------------------------------------------------------------------------------------- */

static void memory(const char *verb, char **words)
{
	uint64_t number = words[1] ? strtoull(words[1], NULL, 0) : 0, address = 0;
	struct mpsd_arena_hooks hooks = { refuse_map, NULL, NULL };
	char text[32];

	if (!strcmp(verb, "alloc")) {
		int rc = mpsd_arena_alloc(arena, number, &address);

		snprintf(text, sizeof(text), "0x%llx", (unsigned long long)address);
		say(rc, text);
	} else if (!strcmp(verb, "free")) {
		say(mpsd_arena_free(arena, number), "");
	} else if (!strcmp(verb, "fill") || !strcmp(verb, "check")) {
		int rc = transfer(number, strtoull(words[2], NULL, 0), (unsigned char)atoi(words[3]), *verb == 'c');

		printf("%d\n", rc);
		fflush(stdout);
	} else if (!strcmp(verb, "guard")) {
		say(mpsd_arena_set_guard(arena, number), "");
	} else {
		say(mpsd_arena_set_hooks(arena, number ? &hooks : NULL), "");
	}
}

/* Makes the state once. With a word for is_quiet the library does not call arena.keep_state. */
static int state(const char *is_quiet)
{
	static struct mpsd_state *made;
	unsigned char bytes[64];
	struct mpsd_pack pack;
	int fd, rc = mpsd_state_create("mpsd-state-1 8\nstep uint64 0\n", 8, mpsd_arena_generation(arena), &made);

	if (rc < 0)
		return rc;
	fd = mpsd_state_fd(made);
	rc = mpsd_arena_set_state(arena, fd);
	if (rc < 0 || is_quiet)
		return rc;
	mpsd_pack_arena(&pack, bytes, sizeof(bytes), mpsd_arena_id(arena), mpsd_arena_generation(arena), 0);
	return mpsd_call(session, "arena.keep_state", bytes, pack.used, &fd, 1, 1, 0, NULL);
}

static void whole(const char *verb, char **words)
{
	char text[96];

	if (!strcmp(verb, "flush")) {
		say(mpsd_arena_flush(arena), "");
	} else if (!strcmp(verb, "commit")) {
		say(mpsd_arena_commit(arena, words[1], words[1] ? strlen(words[1]) : 0), "");
	} else if (!strcmp(verb, "layout")) {
		layout();
	} else if (!strcmp(verb, "seal")) {
		say(mpsd_arena_seal(arena), "");
	} else if (!strcmp(verb, "refresh")) {
		int rc = mpsd_arena_refresh(arena);

		snprintf(text, sizeof(text), "%d", rc);
		say(rc < 0 ? rc : 0, text);
	} else if (!strcmp(verb, "promoted")) {
		say(mpsd_arena_promoted(arena, strtoull(words[1], NULL, 0)), "");
	} else if (!strcmp(verb, "writable")) {
		int rc = mpsd_arena_set_writable(arena, atoi(words[1]));

		snprintf(text, sizeof(text), "%d", rc);
		say(rc < 0 ? rc : 0, text);
	} else if (!strcmp(verb, "state")) { /* one of this generation is the writer's, and mpsd keeps it */
		say(state(words[1]), "");
	} else if (!strcmp(verb, "restore")) {
		uint64_t serial = 0;
		int rc = mpsd_arena_restore(arena, &serial);

		snprintf(text, sizeof(text), "%llu", (unsigned long long)serial);
		say(rc, text);
	} else if (!strcmp(verb, "replaced")) { /* mpsd lets us go, and another may write; here nothing changes */
		say(mpsd_give_back(session, mpsd_arena_id(arena), 0), "");
	} else if (!strcmp(verb, "chosen")) { /* mpsd makes this reader the writer; here nothing changes */
		struct mpsd_wish wish = { arena->name, MPSD_WRITE, 0, 0 };
		struct mpsd_answer answer;
		struct mpsd_facts facts;
		int rc = mpsd_ask_access(session, &wish, 20, &answer);

		if (rc == 0)
			rc = mpsd_read_facts(session, "arena.open", &answer.result, &facts);
		snprintf(text, sizeof(text), "%llu", rc == 0 ? (unsigned long long)facts.generation : 0);
		if (rc == 0)
			mpsd_answer_clear(&answer);
		say(rc, text);
	} else if (!strcmp(verb, "yielded")) {
		say(mpsd_arena_yielded(arena), "");
	} else if (!strcmp(verb, "list")) {
		list();
	} else if (!strcmp(verb, "facts")) {
		snprintf(text, sizeof(text), "%llu %llu", (unsigned long long)mpsd_arena_generation(arena),
			 (unsigned long long)mpsd_arena_used_bytes(arena));
		say(0, text);
	} else if (!strcmp(verb, "close")) {
		say(mpsd_arena_close(arena), "");
		arena = NULL;
	} else {
		mpsd_arena_forget(arena);
		arena = NULL;
		say(0, "");
	}
}

static void outside(const char *verb, char **words)
{
	char text[64];

	if (!strcmp(verb, "session")) {
		open_session(words[1]);
	} else if (!strcmp(verb, "hangup")) {
		mpsd_session_close(session);
		session = NULL;
		puts("0");
		fflush(stdout);
	} else if (!strcmp(verb, "patience")) {
		mpsd_session_patience(session, atof(words[1]), atof(words[2]));
		say(0, "");
	} else if (!strcmp(verb, "create")) {
		struct mpsd_arena_options options = { .capacity_bytes = strtoull(words[2], NULL, 0) };

		say(mpsd_arena_create(session, words[1], &options), "");
	} else if (!strcmp(verb, "remove")) {
		say(mpsd_arena_remove(session, words[1]), "");
	} else if (!strcmp(verb, "open")) {
		enum mpsd_access access = words[2][0] == 'w' ? MPSD_WRITE : MPSD_READ;

		say(mpsd_arena_open(session, &driver, words[1], access, words[3] ? atof(words[3]) : 0, &arena), "");
	} else if (!strcmp(verb, "call")) {
		say(mpsd_call(session, words[1], NULL, 0, NULL, 0, !words[2], 0, NULL), "");
	} else if (!strcmp(verb, "descriptors")) {
		snprintf(text, sizeof(text), "%d", count_descriptors());
		say(0, text);
	} else if (!strcmp(verb, "block")) {
		void *at = (void *)(uintptr_t)strtoull(words[1], NULL, 0);

		say(mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at ? 0 : 1, "");
	} else if (!strcmp(verb, "unblock")) {
		say(munmap((void *)(uintptr_t)strtoull(words[1], NULL, 0), 4096), "");
	} else if (!strcmp(verb, "codes")) {
		printf("0 %d %d\n", mpsd_error_code(session), mpsd_error_cuda(session));
		fflush(stdout);
	} else {
		in_child(words[1] ? atoi(words[1]) : -1);
	}
}

static int is_one_of(const char *verb, const char *list_of)
{
	const char *at = strstr(list_of, verb);

	return at && at[strlen(verb)] == ' ';
}

int main(void)
{
	static char line[65536];
	char *words[8];
	int rc = open_context();

	printf("%d ready\n", rc);
	fflush(stdout);
	while (rc == 0 && fgets(line, sizeof(line), stdin)) {
		char *rest = line;
		int count = 0;

		memset(words, 0, sizeof(words));
		for (char *word; count < 7 && (word = strtok_r(rest, " \n", &rest));)
			words[count++] = word;
		if (!count)
			continue;
		if (is_one_of(words[0], "alloc free fill check guard hooks "))
			memory(words[0], words);
		else if (is_one_of(words[0], "flush commit layout seal refresh promoted yielded writable state restore replaced chosen list facts close forget "))
			whole(words[0], words);
		else
			outside(words[0], words);
	}
	if (arena)
		mpsd_arena_forget(arena);
	mpsd_session_close(session);
	return rc;
}
