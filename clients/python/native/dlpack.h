/* SPDX-License-Identifier: MIT */
/* Memory of an arena, given to other libraries as DLPack capsules, and the count of capsules in use.
 *
 * A library may release a capsule at any time, in any thread, also while or after Python ends: so the deleter is C, and touches
 * only the count, which outlives the arena. The arena is not closed while the count shows that its memory is in use. Layout:
 * dmlc/dlpack, include/dlpack/dlpack.h, versions 0.8 and 1.0; sizes are asserted below. */
#ifndef MPSD_CLIENT_DLPACK_H
#define MPSD_CLIENT_DLPACK_H

#include <Python.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DLPACK_CUDA = 2, DLPACK_MAJOR = 1, DLPACK_MINOR = 0, DLPACK_READ_ONLY = 1, DLPACK_MOST_DIMENSIONS = 64 };

struct dlpack_tensor { /* DLTensor */
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
	int64_t *shape;
	int64_t *strides; /* in elements */
	uint64_t byte_offset;
};
_Static_assert(sizeof(struct dlpack_tensor) == 48, "DLTensor");

struct dlpack_plain { /* DLManagedTensor, in a capsule "dltensor" */
	struct dlpack_tensor tensor;
	void *context;
	void (*deleter)(struct dlpack_plain *self);
};
_Static_assert(sizeof(struct dlpack_plain) == 64, "DLManagedTensor");

struct dlpack_versioned { /* DLManagedTensorVersioned, in a capsule "dltensor_versioned" */
	uint32_t major;
	uint32_t minor;
	void *context;
	void (*deleter)(struct dlpack_versioned *self);
	uint64_t flags;
	struct dlpack_tensor tensor;
};
_Static_assert(sizeof(struct dlpack_versioned) == 80, "DLManagedTensorVersioned");

/* The exports of one arena. One holder is the arena itself, the others are capsules; the last one frees it. */
struct mpsd_exports {
	atomic_long holders;
};

/* A tensor, as Python describes it. Borrowed; shape and strides have ndim numbers each, strides count elements. */
struct mpsd_export {
	uint64_t address;
	const int64_t *shape;
	const int64_t *strides;
	int32_t ndim;
	int32_t device; /* the ordinal that CUDA gives it in this process */
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
	uint8_t is_versioned;
	uint8_t is_read_only; /* only the versioned form can express it */
};

/* Gives one with a single holder, the caller; NULL: no memory. */
static struct mpsd_exports *mpsd_exports_new(void)
{
	struct mpsd_exports *made = malloc(sizeof *made);

	if (made)
		atomic_init(&made->holders, 1);
	return made;
}

/* Any thread.  The last holder frees it. */
static void mpsd_exports_leave(struct mpsd_exports *exports)
{
	if (atomic_fetch_sub_explicit(&exports->holders, 1, memory_order_acq_rel) == 1)
		free(exports);
}

/* How many capsules, or what was made of them, are out; asked by the holder that the arena is. */
static long mpsd_exports_out(struct mpsd_exports *exports)
{
	return atomic_load_explicit(&exports->holders, memory_order_acquire) - 1;
}

static void dlpack_plain_gone(struct dlpack_plain *self)
{
	mpsd_exports_leave(self->context);
	free(self);
}

static void dlpack_versioned_gone(struct dlpack_versioned *self)
{
	mpsd_exports_leave(self->context);
	free(self);
}

/* `rest` is the room behind the struct, for 2 * ndim numbers, which it owns from then on. */
static void dlpack_fill(struct dlpack_tensor *tensor, const struct mpsd_export *asked, int64_t *rest)
{
	size_t bytes = (size_t)asked->ndim * sizeof *rest;

	tensor->data = (void *)(uintptr_t)asked->address;
	tensor->device_type = DLPACK_CUDA;
	tensor->device_id = asked->device;
	tensor->ndim = asked->ndim;
	tensor->code = asked->code;
	tensor->bits = asked->bits;
	tensor->lanes = asked->lanes;
	tensor->shape = rest;
	tensor->strides = rest + asked->ndim;
	if (bytes) {
		memcpy(tensor->shape, asked->shape, bytes);
		memcpy(tensor->strides, asked->strides, bytes);
	}
}

/* Gives what a capsule holds, and counts it; NULL: no memory, or a number of dimensions that cannot be.  Any thread. */
static void *dlpack_new(struct mpsd_exports *exports, const struct mpsd_export *asked)
{
	size_t head = asked->is_versioned ? sizeof(struct dlpack_versioned) : sizeof(struct dlpack_plain);
	char *made;

	if (asked->ndim < 0 || asked->ndim > DLPACK_MOST_DIMENSIONS)
		return NULL;
	made = calloc(1, head + 2 * (size_t)asked->ndim * sizeof(int64_t));
	if (!made)
		return NULL;
	if (asked->is_versioned) {
		struct dlpack_versioned *versioned = (void *)made;

		*versioned = (struct dlpack_versioned){DLPACK_MAJOR, DLPACK_MINOR, exports, dlpack_versioned_gone,
						       asked->is_read_only ? DLPACK_READ_ONLY : 0, {0}};
		dlpack_fill(&versioned->tensor, asked, (int64_t *)(void *)(made + head));
	} else {
		struct dlpack_plain *plain = (void *)made;

		plain->context = exports;
		plain->deleter = dlpack_plain_gone;
		dlpack_fill(&plain->tensor, asked, (int64_t *)(void *)(made + head));
	}
	atomic_fetch_add_explicit(&exports->holders, 1, memory_order_relaxed);
	return made;
}

/* Deleter of a capsule that no library consumed; a consumed capsule has another name by then. */
static void dlpack_dropped(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
		dlpack_versioned_gone(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
	else if (PyCapsule_IsValid(capsule, "dltensor"))
		dlpack_plain_gone(PyCapsule_GetPointer(capsule, "dltensor"));
}

/* Returns a capsule, a new reference; NULL with an exception set: no memory, or an impossible number of dimensions. Must be
 * called with the interpreter's lock held: through ctypes.PYFUNCTYPE, not as a function of cffi, which releases it. */
static void *mpsd_dlpack_capsule(struct mpsd_exports *exports, const struct mpsd_export *asked)
{
	void *held = dlpack_new(exports, asked);
	PyObject *capsule;

	if (!held)
		return PyErr_NoMemory();
	capsule = PyCapsule_New(held, asked->is_versioned ? "dltensor_versioned" : "dltensor", dlpack_dropped);
	if (!capsule && asked->is_versioned)
		dlpack_versioned_gone(held);
	else if (!capsule)
		dlpack_plain_gone(held);
	return capsule;
}

#endif
