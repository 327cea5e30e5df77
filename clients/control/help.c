/* SPDX-License-Identifier: MIT */
/* Help: what -h and -v print.  The commands themselves live in the daemon (mpsd/legacy). */
#include "control.h"

#include <stdio.h>

#ifndef MPSD_BINARY_VERSION
#define MPSD_BINARY_VERSION "13000" /* callers parse it: the CUDA version that the commands are those of */
#endif
#ifndef MPSD_VERSION
#define MPSD_VERSION "unversioned"
#endif

/* Distinguishes this program from the vendor's of the same name: `make install` looks for it before it replaces or removes one,
 * and mpsd before it starts one. */
__attribute__((used)) const char help_marker[] = "mpsd-front-end";

#define PROGRAM "CUDA MPS Control for Linux/Unix/QNX."

static const struct {
	const char *words;
	const char *meaning;
} options[] = {
	{ "-h,--help", "Print this message" },
	{ "-v,--version", "Print the version" },
	{ "-d,--daemon", "Start the daemon in the background, and return when it listens" },
	{ "-f,--forground", "Be the daemon, in the foreground (also --foreground)" },
	{ "-M,--multiuser-server", "Let all users share one server (also -multiuser-server)" },
	{ "-q,--ready-devices", "Look the devices up when the daemon starts" },
	{ "-S,--static-partitioning", "Partition the SMs statically, where the driver can" },
}, commands[] = {
	{ "help", "List the commands" },
	{ "start_server -uid <user id>", "Start a server for this user" },
	{ "shutdown_server <PID> [-f]", "End a server when its clients have gone; with -f at once" },
	{ "quit [-t <seconds>]", "End the daemon when its clients have gone, after -t seconds at the latest" },
	{ "get_server_list", "List the servers, one PID a line" },
	{ "get_server_status <PID>", "Print the state of a server" },
	{ "get_client_list <PID>", "List the clients of a server, one PID a line" },
	{ "get_device_client_list [<PID>]", "List the devices and the clients that use each" },
	{ "ps [-p PID]", "Print a table of the clients" },
	{ "set_default_active_thread_percentage <percentage>", "Limit the SM share of clients of servers still to start" },
	{ "get_default_active_thread_percentage", "Print that limit" },
	{ "set_active_thread_percentage <PID> <percentage>", "Limit the SM share of coming clients of a server" },
	{ "get_active_thread_percentage <PID>", "Print that limit" },
	{ "set_default_device_pinned_mem_limit <dev> <value>", "Limit device memory for clients of servers still to start" },
	{ "get_default_device_pinned_mem_limit <dev>", "Print that limit" },
	{ "set_device_pinned_mem_limit <PID> <dev> <value>", "Limit device memory for coming clients of a server" },
	{ "get_device_pinned_mem_limit <PID> <dev>", "Print that limit" },
	{ "set_default_client_priority <priority>", "Set the priority of coming clients: 0 normal, 1 below normal" },
	{ "get_default_client_priority", "Print that priority" },
	{ "terminate_client <server PID> <client PID>", "End a client's work on the GPU, and leave the other clients alone" },
	{ "device_query [<PID>] [--csv]", "List the devices that can be used" },
	{ "lspart", "List the SM partitions" },
	{ "sm_partition add <dev> <chunks> | rm <dev> <partition>", "Add or remove an SM partition" },
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

void help_print(void)
{
	printf("%s\nmpsd %s\n\n"
	       "  mpsd lets several processes share a GPU, and keeps a fault of one from the others. This program\n"
	       "  starts its daemon, or hands it commands: from the arguments, else from stdin, one a line.\n\n"
	       "nvidia-cuda-mps-control [options] [command]\nOPTIONS:\n",
	       PROGRAM, MPSD_VERSION);
	for (size_t i = 0; i < COUNT(options); i++)
		printf("  %-26s %s\n", options[i].words, options[i].meaning);
	printf("\nCOMMAND:\n");
	for (size_t i = 0; i < COUNT(commands); i++)
		printf("  %s\n                       %s\n", commands[i].words, commands[i].meaning);
	printf("\n");
}

void help_print_version(void)
{
	printf("%s Binary version: %s\nmpsd %s\n", PROGRAM, MPSD_BINARY_VERSION, MPSD_VERSION);
}
