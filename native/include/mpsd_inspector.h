/* SPDX-License-Identifier: MIT */
/*
 * mpsd_inspector.h: the protocol of `mpsd-inspector`, the process that reads other processes for mpsd, and starts programs.
 *
 * Some reads of another process wait for a lock or a page that its user can hold for ever: /proc/PID's
 * environ, maps and cmdline, kcmp(2), pidfd_getfd(2), close(2) of a descriptor taken that way, with some
 * kernels stat and the links in fd, ns and exe, and before Linux 6.8 cgroup (docs/relay.md, "A client that cannot be read"; decision 029).
 * So does every open(2) of a file of a cgroup, and of a file below /proc/PID.
 *
 * Transport.  mpsd starts `mpsd-inspector --fd N` or `--direct N`; N is one end of an AF_UNIX SOCK_SEQPACKET
 * pair.  The process exits when mpsd closes the other end.  A request is one datagram: struct
 * mpsd_inspector_request, then `pairs` struct mpsd_inspector_pair, then words, each ended by NUL.  An answer
 * is one datagram: struct mpsd_inspector_answer, then the payload.
 *
 * mpsd starts programs through it, since mpsd receives descriptors from its clients: the exec of a program closes all of
 * them, and a file of a FUSE mount can let that wait for ever.  The inspector has none.
 *
 * --fd: the inspector forks one child for each request.  The child reads, answers and exits; a timer kills it
 * at the deadline.  With a request come one or two descriptors: the socket to answer on, also SOCK_SEQPACKET,
 * and for TAKE a pidfd.  When the socket closes without an answer, the child was killed.
 *
 * --direct: the process itself reads, and answers on N, one request after the other.  mpsd kills it when a
 * read waits, and starts another one.  It runs before other processes, where it may.  For STAT, FILE, SPACES, FIND, CGROUP, TEXT, CHILDREN
 * and THREADS_OF, which seldom wait.  It first sends an answer without a payload, with a descriptor of its own /proc/self/status: in that mpsd sees
 * whether it waits.
 *
 *   op     request                                    payload when status is 0
 *   PING   nothing                                    none; count: living children.  Answered without a child
 *   FACTS  words: names of variables                  the first word of cmdline, NUL, then NAME=VALUE, NUL each
 *   MAPS   nothing                                    the first MPSD_INSPECTOR_MAPS_BYTES bytes of maps
 *   SAME   pairs                                      a byte each: is descriptor `own` of process `asker` the
 *                                                     same open file as descriptor `number` of the pair's `pid`?
 *   TAKE   words: links, of a device their last       count numbers (int32), and as many descriptors: duplicates
 *          names; pairs: those already known;         of descriptors of `pid` that link to one of the words, refer
 *          rdev_major, rdev_minor: of a device,       to this device, and are in none of the pairs
 *          or 0, 0
 *   STAT   nothing                                    the contents of task/PID/stat: the kernel visits no other thread for it.
 *                                                     Of stat, if few threads are left and the first has ended, or is ending
 *   FILE   a word: exe, root, or fd/3 (of a keeper,   struct mpsd_inspector_file, and the link
 *          its listening socket)
 *   SPACES nothing                                    uint64: the number of its pid namespace, then of each one
 *                                                     above it; the last is the inspector's own.  -EXDEV: it is
 *                                                     in none below.  The id, or before Linux 6.18 the inode
 *   FIND   words: links, or their last names          numbers (int32) of the descriptors with such a link; count: milliseconds
 *                                                     of the processor's time that the search took
 *   TEXT   a word: status, comm or uid_map            the first MPSD_INSPECTOR_TEXT_BYTES bytes of that file
 *   CHILDREN nothing                                  numbers (int32): the children of its first MPSD_INSPECTOR_THREADS threads
 *   THREADS_OF nothing, or the word few               numbers (int32): its threads, the first MPSD_INSPECTOR_THREADS or _FEW_THREADS
 *   READER nothing                                    none; count: the pid of a new process, a child of mpsd's,
 *                                                     that serves this socket as `--direct` does
 *   RUN    words: variables of the environment, then  none; count: the pid of a new process, a child of mpsd's and
 *          the program's path and its arguments; uid: leader of a session, with `/` as its directory and the
 *          of its user, or MPSD_INSPECTOR_SAME_USER;  descriptors that came after the socket as 0, 1, 2 and 3. If
 *          three or four more descriptors             the program cannot be executed, a second answer has -errno
 *   CGROUP nothing                                    the contents of cgroup, NUL, and those of task/PID/stat, read between
 *                                                     two reads of cgroup.  -EAGAIN: those differ
 *   FROZEN pairs: processes; a word: where cgroup v2  a byte each, enum mpsd_inspector_frozen: is cgroup.freeze of the
 *          is mounted                                 process's cgroup, or of one above it, 1?  Without its first
 *                                                     thread, of the cgroup of another that goes on
 *   FREEZER a word: the directory of a cgroup         struct mpsd_inspector_freezer
 *   FREEZE, words: the directory of a cgroup, and     FREEZE: none. The child writes 1 to cgroup.freeze, and 0 again
 *   THAW   its inode, in decimal                      if mpsd has closed the socket by then. THAW: a byte: was it 1?
 *   PROCESSES a word: the directory of a cgroup       numbers (int32): the processes of it and of all below it
 *   PATHS  pairs: processes; uid: for whom            the contents of cgroup of the first `count` processes, NUL each: one or
 *                                                     more, as many as MPSD_INSPECTOR_PATHS_MS allow.  Nothing: it has
 *                                                     gone; "-": it cannot be read
 *
 * `status` is 0 or -errno: -EBUSY when `uid` has MPSD_INSPECTOR_SHARE living children, or all uids together have
 * MPSD_INSPECTOR_MOST, of which MPSD_INSPECTOR_FIRST are reserved for uids without a child. FROZEN, FREEZER, FREEZE, THAW
 * and PROCESSES have as many places of their own, and MPSD_INSPECTOR_CGROUP_SHARE for one uid: no signal ends a child that
 * waits for a cgroup, and other reads need places then.  -E2BIG when a value, the environment or cgroup is longer than the
 * bounds below, CHILDREN finds more than a datagram holds, PROCESSES finds more cgroups or processes than those, or a search
 * (FIND, TAKE) takes longer than MPSD_INSPECTOR_FIND_MS.
 *
 * In Python's struct a request is "=IIIIIIIIII", a pair "=iiI", an answer "=iI", a file "=QQ", a freezer "=QII".
 */
#ifndef MPSD_INSPECTOR_H
#define MPSD_INSPECTOR_H

#include <stdint.h>

enum { MPSD_INSPECTOR_VERSION = 1 };

enum mpsd_inspector_op {
	MPSD_INSPECTOR_PING,
	MPSD_INSPECTOR_FACTS,
	MPSD_INSPECTOR_MAPS,
	MPSD_INSPECTOR_SAME,
	MPSD_INSPECTOR_TAKE,
	MPSD_INSPECTOR_STAT,
	MPSD_INSPECTOR_FILE,
	MPSD_INSPECTOR_SPACES,
	MPSD_INSPECTOR_FIND,
	MPSD_INSPECTOR_READER,
	MPSD_INSPECTOR_RUN,
	MPSD_INSPECTOR_CGROUP,
	MPSD_INSPECTOR_FROZEN,
	MPSD_INSPECTOR_FREEZER,
	MPSD_INSPECTOR_FREEZE,
	MPSD_INSPECTOR_THAW,
	MPSD_INSPECTOR_PROCESSES,
	MPSD_INSPECTOR_PATHS,
	MPSD_INSPECTOR_TEXT,
	MPSD_INSPECTOR_CHILDREN,
	MPSD_INSPECTOR_THREADS_OF,
	MPSD_INSPECTOR_OPS
};

#define MPSD_INSPECTOR_SAME_USER UINT32_MAX

/* Of the processor's time, for the descriptors of one process: a link costs the kernel the more the deeper its path is. */
#ifndef MPSD_INSPECTOR_FIND_MS
#define MPSD_INSPECTOR_FIND_MS 200 /* tests build with less */
#endif

enum mpsd_inspector_frozen { MPSD_INSPECTOR_IS_THAWED, MPSD_INSPECTOR_IS_FROZEN, MPSD_INSPECTOR_MAY_BE_FROZEN };

enum mpsd_inspector_same { MPSD_INSPECTOR_OTHER, MPSD_INSPECTOR_IS_SAME, MPSD_INSPECTOR_UNKNOWN };

enum {
	MPSD_INSPECTOR_MOST = 544,        /* children at a time, and again for files of cgroups */
	MPSD_INSPECTOR_FIRST = 448,       /* reserved for uids without a child */
	MPSD_INSPECTOR_SHARE = 8,         /* and for one uid at most */
	MPSD_INSPECTOR_CGROUP_SHARE = 4,  /* the same for files of cgroups */
	MPSD_INSPECTOR_DATAGRAM = 65536,  /* a request or an answer */
	MPSD_INSPECTOR_MAPS_BYTES = 16384, /* the lowest mappings; the kernel lists them in order */
	MPSD_INSPECTOR_ENVIRON = 8 << 20, /* execve(2) takes 6 MiB of arguments and environment at most */
	MPSD_INSPECTOR_PROGRAM = 4096,    /* of cmdline's first word */
	MPSD_INSPECTOR_TAKEN = 8,         /* descriptors in an answer */
	MPSD_INSPECTOR_NUMBERS = 65536,   /* descriptors of a process that are looked at */
	MPSD_INSPECTOR_STAT_BYTES = 4096,
	MPSD_INSPECTOR_TEXT_BYTES = 65528, /* what a datagram holds */
	MPSD_INSPECTOR_THREADS = 1024,    /* of a process that are listed: 3 ms */
	MPSD_INSPECTOR_FEW_THREADS = 64,  /* where some tell enough; more than _MOST_THREADS of mpsd/host/processes.py */
	MPSD_INSPECTOR_PATHS_MS = 200,
	MPSD_INSPECTOR_CGROUP_BYTES = 16384, /* 4 paths of the greatest length, or 13 hierarchies with 1,200 bytes each */
	MPSD_INSPECTOR_SPACES_MOST = 33,  /* MAX_PID_NS_LEVEL of linux/pid_namespace.h, and the first */
	MPSD_INSPECTOR_CGROUPS = 256,     /* 0.1 s; beyond that mpsd stops only the clients, one by one */
	MPSD_INSPECTOR_CGROUP_PROCESSES = 1024,
	MPSD_INSPECTOR_PAIRS = 64
};

struct mpsd_inspector_request {
	uint32_t version;
	uint32_t op;
	uint32_t pid;         /* the process to read; for SAME the pairs name it */
	uint32_t uid;         /* the child counts towards this user's share */
	uint32_t deadline_ms; /* 1 or more */
	uint32_t asker;       /* SAME, TAKE: the pairs' `own` are descriptors of this process */
	uint32_t rdev_major;
	uint32_t rdev_minor;
	uint32_t pairs;
	uint32_t reserved; /* 0 */
};
_Static_assert(sizeof(struct mpsd_inspector_request) == 40, "mpsd_inspector_request");

struct mpsd_inspector_pair { /* a descriptor of the asker, and one of another process */
	int32_t own;
	int32_t number;
	uint32_t pid;
};
_Static_assert(sizeof(struct mpsd_inspector_pair) == 12, "mpsd_inspector_pair");

struct mpsd_inspector_answer {
	int32_t status; /* 0, or -errno */
	uint32_t count;
};
_Static_assert(sizeof(struct mpsd_inspector_answer) == 8, "mpsd_inspector_answer");

struct mpsd_inspector_freezer {
	uint64_t inode;     /* of the cgroup's directory */
	uint32_t is_asked;  /* cgroup.freeze */
	uint32_t is_frozen; /* cgroup.events */
};
_Static_assert(sizeof(struct mpsd_inspector_freezer) == 16, "mpsd_inspector_freezer");

struct mpsd_inspector_file {
	uint64_t device; /* st_dev and st_ino, stat(2); 0 if the file cannot be asked */
	uint64_t inode;
};
_Static_assert(sizeof(struct mpsd_inspector_file) == 16, "mpsd_inspector_file");

#endif
