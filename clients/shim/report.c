/* Report the first sticky error to mpsd, once in the life of the process, if it helps to find the culprit. */
#include "shim.h"

static const struct sticky {
	int code;
	const char *name;
} sticky[] = { /* after these every call of the context gives the same */
	{ 214, "CUDA_ERROR_ECC_UNCORRECTABLE" },
	{ 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE" },
	{ 226, "CUDA_ERROR_CONTAINED" },
	{ 700, "CUDA_ERROR_ILLEGAL_ADDRESS" },
	{ 702, "CUDA_ERROR_LAUNCH_TIMEOUT" },
	{ 710, "CUDA_ERROR_ASSERT" },
	{ 714, "CUDA_ERROR_HARDWARE_STACK_ERROR" },
	{ 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION" },
	{ 716, "CUDA_ERROR_MISALIGNED_ADDRESS" },
	{ 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE" },
	{ 718, "CUDA_ERROR_INVALID_PC" },
	{ 719, "CUDA_ERROR_LAUNCH_FAILED" },
	{ 806, "CUDA_ERROR_MPS_RPC_FAILURE" },
	{ 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED" },
};

static bool is_told;

static const struct sticky *find(CUresult result)
{
	for (size_t i = 0; i < sizeof(sticky) / sizeof(*sticky); i++)
		if (sticky[i].code == (int)result)
			return &sticky[i];
	return NULL;
}

/* The protocol takes printable text. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if (*text < 0x20 || *text > 0x7e)
			*text = '?';
}

static void tell(const struct sticky *error)
{
	char kernel[401], text[401] = "";
	unsigned char bytes[1024];
	struct mpsd_pack pack;
	bool is_only;

	functions_last(kernel, sizeof(kernel), &is_only);
	make_printable(kernel);
	if (!is_only && *kernel) { /* it may have been an earlier one */
		snprintf(text, sizeof(text), "the last of several kernels that had been launched: %.300s", kernel);
		*kernel = 0;
	}
	shim_log("first error: %d %s %s%s", error->code, error->name, kernel, text);
	mpsd_pack_begin(&pack, bytes, sizeof(bytes));
	mpsd_pack_map(&pack, 4);
	mpsd_pack_text(&pack, "code");
	mpsd_pack_uint(&pack, (uint64_t)error->code);
	mpsd_pack_text(&pack, "name");
	mpsd_pack_text(&pack, error->name);
	mpsd_pack_text(&pack, "kernel");
	mpsd_pack_text(&pack, kernel);
	mpsd_pack_text(&pack, "text");
	mpsd_pack_text(&pack, text);
	session_tell("fault.report", bytes, pack.used);
}

void report_result(CUresult result)
{
	const struct sticky *error = find(result);
	int before = errno;

	if (!error || !gate_has_begun() || __atomic_exchange_n(&is_told, true, __ATOMIC_ACQ_REL))
		return;
	tell(error);
	errno = before;
}
