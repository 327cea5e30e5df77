"""The command table: privilege, parser, handler, and the help of each command.

A test checks docs/commands.md against it.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from msgspec import Struct

from mpsd.commands.language import forwarded, grammar, limits, render, servers
from mpsd.commands.language.call import Answer, CommandCall
from mpsd.commands.language.grammar import LineRequest


class CommandPrivilege(Enum):
    """The callers that may give a command, in the words of docs/commands.md."""

    ANYONE = "anyone"
    OWNER = "an operator"  # root, the daemon's own user, and members of the admin group
    USER = "an operator, and the server's user"


class Command(Struct, frozen=True):
    """A row of the table.  The last two are the vendor's texts for an unknown server and for a refused caller."""

    privilege: CommandPrivilege
    parse: Callable[[tuple[str, ...]], LineRequest]
    run: Callable[[CommandCall[Any]], Awaitable[Answer]]
    syntax: str
    help: str
    unknown_server: Callable[[LineRequest], str] = render.server_not_found
    refusal: Callable[[int], str] = render.insufficient_privilege


async def show_help(ask: CommandCall[grammar.Help]) -> Answer:
    """Return the help of every command, or of the one asked about."""
    topic = ask.request.topic
    if topic is not None and topic not in COMMANDS:
        return Answer(render.unknown_command(topic))
    shown = [COMMANDS[topic]] if topic else COMMANDS.values()
    return Answer("".join(f"{command.syntax}\n{'':8}{command.help}\n" for command in shown))


COMMANDS: dict[str, Command] = {
    "get_server_list": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_nothing,
        servers.get_server_list,
        "get_server_list",
        "Print the PIDs of the servers",
    ),
    "get_server_status": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_server_status,
        servers.get_server_status,
        "get_server_status PID",
        "Print the status of the server: INITIALIZING, ACTIVE or FAULT",
    ),
    "start_server": Command(
        CommandPrivilege.USER,
        grammar.parse_start_server,
        servers.start_server,
        "start_server -uid UID",
        "Start a server for the user",
    ),
    "shutdown_server": Command(
        CommandPrivilege.USER,
        grammar.parse_shutdown_server,
        servers.shutdown_server,
        "shutdown_server PID [-f]",
        "End the server once its clients have gone, or at once with -f",
    ),
    "get_client_list": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_server,
        servers.get_client_list,
        "get_client_list PID",
        "Print the PIDs of the clients of the server",
    ),
    "get_device_client_list": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_any_server,
        forwarded.get_device_client_list,
        "get_device_client_list [PID]",
        "Print the devices and the clients on each, of one server or of all",
    ),
    "terminate_client": Command(
        CommandPrivilege.USER,
        grammar.parse_terminate_client,
        servers.terminate_client,
        "terminate_client SERVER_PID CLIENT_PID",
        "End the outstanding GPU work of the client; prints 0 where it worked, otherwise a CUDA error",
        unknown_server=render.server_not_found_and_failed,
        refusal=render.insufficient_privilege_and_failed,
    ),
    "ps": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_ps,
        forwarded.ps,
        "ps [-p PID]",
        "Print a snapshot of the clients, of one server or of all",
        unknown_server=render.server_not_found_twice,
    ),
    "set_default_active_thread_percentage": Command(
        CommandPrivilege.OWNER,
        grammar.parse_default_percent,
        limits.set_default_active_thread_percentage,
        "set_default_active_thread_percentage PERCENT",
        "Set the share of the SMs of the servers to come; prints what holds afterwards",
    ),
    "get_default_active_thread_percentage": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_nothing,
        limits.get_default_active_thread_percentage,
        "get_default_active_thread_percentage",
        "Print the share of the SMs of the servers to come",
    ),
    "set_active_thread_percentage": Command(
        CommandPrivilege.USER,
        grammar.parse_server_percent,
        limits.set_active_thread_percentage,
        "set_active_thread_percentage PID PERCENT",
        "Set the share of the SMs of the clients to come of the server; prints what holds afterwards",
    ),
    "get_active_thread_percentage": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_server,
        limits.get_active_thread_percentage,
        "get_active_thread_percentage PID",
        "Print the share of the SMs of the clients to come of the server",
    ),
    "set_default_device_pinned_mem_limit": Command(
        CommandPrivilege.OWNER,
        grammar.parse_default_limit,
        limits.set_default_device_pinned_mem_limit,
        "set_default_device_pinned_mem_limit DEVICE LIMIT",
        "Limit the device memory of each client of the servers to come; 0M for no limit",
    ),
    "get_default_device_pinned_mem_limit": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_default_limit,
        limits.get_default_device_pinned_mem_limit,
        "get_default_device_pinned_mem_limit DEVICE",
        "Print the memory limit of the servers to come; nothing where there is none",
    ),
    "set_device_pinned_mem_limit": Command(
        CommandPrivilege.USER,
        grammar.parse_server_limit,
        limits.set_device_pinned_mem_limit,
        "set_device_pinned_mem_limit PID DEVICE LIMIT",
        "Limit the device memory of each client to come of the server; 0M for no limit",
    ),
    "get_device_pinned_mem_limit": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_server_limit,
        limits.get_device_pinned_mem_limit,
        "get_device_pinned_mem_limit PID DEVICE",
        "Print the memory limit of the clients to come of the server; nothing where there is none",
    ),
    "set_default_client_priority": Command(
        CommandPrivilege.OWNER,
        grammar.parse_priority,
        limits.set_default_client_priority,
        "set_default_client_priority 0|1",
        "Set the priority of the clients to come: 0 normal, 1 below normal",
    ),
    "get_default_client_priority": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_nothing,
        limits.get_default_client_priority,
        "get_default_client_priority",
        "Print the priority of the clients to come",
    ),
    "device_query": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_device_query,
        forwarded.device_query,
        "device_query [PID] [--csv]",
        "Print the devices, of one server or of all",
    ),
    "lspart": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_lspart,
        forwarded.pass_on,
        "lspart",
        "List the SM partitions of the default domain, where the driver has them",
    ),
    "sm_partition": Command(
        CommandPrivilege.OWNER,
        grammar.parse_sm_partition,
        forwarded.pass_on,
        "sm_partition add DEVICE CHUNKS | rm DEVICE PARTITION",
        "Add or remove an SM partition in the default domain, where the driver has them",
    ),
    "quit": Command(
        CommandPrivilege.OWNER,
        grammar.parse_quit,
        servers.quit_daemon,
        "quit [-t SECONDS]",
        "End the daemon once all clients have gone, or by force after that many seconds",
        refusal=render.may_not_quit,
    ),
    "help": Command(
        CommandPrivilege.ANYONE,
        grammar.parse_help,
        show_help,
        "help [COMMAND]",
        "Print this list, or the line of one command",
    ),
}
