/* SPDX-License-Identifier: MIT */
/*
 * mpsd.h: the C client of mpsd, header-only: C11 and C++17, libc and pthread, not linked against libcuda.
 *
 *   #define _GNU_SOURCE     before any other header, or with -D_GNU_SOURCE
 *   #include <mpsd.h>       every function is static, and unused ones cost nothing
 *
 * A program of several files that wants one copy writes `#define MPSD_API` (or a visibility) in all of them, and in all but one
 * `#define MPSD_NO_CODE`.  All state is in sessions and arenas.  The library does not exit, print, or wait without an end;
 * after a failure no step is left half done.  Prose and an example: docs/c.md.
 */
#ifndef MPSD_H
#define MPSD_H

#ifndef MPSD_CDEF /* a binding defines it, and MPSD_API as nothing, and runs `cc -E -P`: only declarations remain */
#ifndef _GNU_SOURCE
#ifdef __cplusplus
#define _GNU_SOURCE 1
#elif defined(_FEATURES_H)
#error "define _GNU_SOURCE before the first #include"
#else
#define _GNU_SOURCE
#endif
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#if !defined(MPSD_NO_CUDA_H) && defined(__has_include)
#if !__has_include(<cuda.h>)
#define MPSD_NO_CUDA_H
#endif
#endif
#ifndef MPSD_NO_CUDA_H
#include <cuda.h>
#endif
#ifndef MPSD_API
#define MPSD_API __attribute__((unused, noinline)) static
#endif
#ifdef __cplusplus
extern "C" {
#endif
#endif

#include "mpsd/driver.h"
#include "mpsd/pack.h"
#include "mpsd/session.h"
#include "mpsd/arena.h"
#include "mpsd_state.h"
#include "mpsd/state.h"

#ifndef MPSD_CDEF
#ifndef MPSD_NO_CODE
#include "mpsd/code/pack.h"
#include "mpsd/code/driver.h"
#include "mpsd/code/words.h"
#include "mpsd/code/peer.h"
#include "mpsd/code/wire.h"
#include "mpsd/code/exchange.h"
#include "mpsd/code/deferred.h"
#include "mpsd/code/session.h"
#include "mpsd/code/ask.h"
#include "mpsd/code/space.h"
#include "mpsd/code/place.h"
#include "mpsd/code/give.h"
#include "mpsd/code/repair.h"
#include "mpsd/code/alloc.h"
#include "mpsd/code/take.h"
#include "mpsd/code/renew.h"
#include "mpsd/code/open.h"
#include "mpsd/code/questions.h"
#include "mpsd/code/arena.h"
#include "mpsd/code/terms.h"
#include "mpsd/code/state_digest.h"
#include "mpsd/code/state.h"
#include "mpsd/code/state_publish.h"
#include "mpsd/code/state_reader.h"
#endif
#ifdef __cplusplus
}
#endif
#endif

#endif
