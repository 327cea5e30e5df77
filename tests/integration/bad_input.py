"""Bad input, one row for each: the program, what is typed, the exit status, and the words that the one line must have.

Each answer names what was asked and what was found or is accepted; the answers of the command language are the vendor's words.
"""

GPU = "an ordinal, a UUID or the beginning of one"
SIZE, DURATION, PID = "a number and K, M, G or T", "a number and s, m, h or d", "a whole number, 1 to 2147483647"

# Command lines of mpsctl: status 2, before any connection.
MPSCTL_USAGE = (
    ("", "missing: COMMAND"),
    ("-x", 'unknown argument "-x"'),
    ("leese", 'unknown command "leese"; did you mean lease'),
    ("domian drain d1", 'unknown command "domian"; did you mean domain'),
    ("lease", "missing: COMMAND"),
    ("lease relese 1", 'unknown command "relese"; did you mean release'),
    ("domain dreain x", 'unknown command "dreain"; did you mean drain'),
    ("leases --stat active", 'unknown argument "--stat"; did you mean --state?'),
    ("leases extra", 'mpsctl leases: unknown argument "extra"'),
    ("leases --state gone", '--state: found "gone"; accepted: active, queued'),
    ("lease create", "missing: NAME"),
    ("lease create x", "missing: one of --pid --user --cgroup --token --new-token"),
    ("lease create x --user no-such-user", '--user: found "no-such-user"; accepted: the name or the number of a user'),
    ("lease create x --user 1000 --pid 1", "--pid: not allowed with argument --user"),
    ("lease create x --user 1000 --sm 130%", '--sm: found "130%"; accepted: a percentage, as 30%, or a number of SMs'),
    ("lease create x --user 1000 --sm 0%", '--sm: found "0%"; accepted: a percentage'),
    ("lease create x --user 1000 --memory 8", f'--memory: found "8"; accepted: {SIZE}'),
    ("lease create x --user 1000 --memory none", f'--memory: found "none"; accepted: {SIZE}'),
    ("lease create x --user 1000 --owner no-such-user", '--owner: found "no-such-user"; accepted: '),
    ("lease create x --user 1000 --ttl 5", f'--ttl: found "5"; accepted: {DURATION}'),
    ("lease create x --user 1000 --wait -1s", "--wait: its value is missing"),
    ("lease create x --user 1000 --level fast", '--level: found "fast"; accepted: interactive, batch'),
    ("lease create x --user 1000 --priority 7", '--priority: found "7"; accepted: a whole number, 0 to 1'),
    ("lease create x --user 1000 --processes 0", '--processes: found "0"; accepted: a whole number, 1 to 1024'),
    ("lease create x --user 1000 --domain blue", '--domain: found "blue"; accepted: shared, own'),
    ("lease renew x", 'ID: found "x"; accepted: a whole number'),
    ("lease renew 1 --ttl 5", f'--ttl: found "5"; accepted: {DURATION}'),
    ("why", "missing: PID"),
    ("why me", f'PID: found "me"; accepted: {PID}'),
    ("stop", "missing: one of --pid --cgroup --container"),
    ("stop --pid 12 --grace 5", f'--grace: found "5"; accepted: {DURATION}'),
    ("move 1", "missing: DOMAIN"),
    ("limits set", "nothing to change; give --sm, --memory, --priority"),
    ("limits set --sm 40", '--sm: found "40"; accepted: a percentage, as 30%'),
    ("limits set --priority 9", '--priority: found "9"; accepted: a whole number, 0 to 1'),
    ("fault x", 'NUMBER: found "x"; accepted: a whole number'),
    ("faults --since yesterday", f'--since: found "yesterday"; accepted: {DURATION}'),
    ("faults --class odd", '--class: found "odd"; accepted: mmu, sm'),
    ("faults --last 0", '--last: found "0"; accepted: a whole number, 1 to'),
    ("arena create x", "missing: --capacity"),
    ("arena create x --capacity 8", f'--capacity: found "8"; accepted: {SIZE}'),
    ("arena create x --capacity 999T", '--capacity: found "999T"; accepted: 2M to 4T'),
    ("arena create x --capacity 8G --mode 999", '--mode: found "999"; accepted: an octal mode'),
    ("arena change x", "nothing to change; give --capacity, --mode, --ttl"),
    ("arena change x --mode 01777", '--mode: found "01777"; accepted: an octal mode'),
    ("arena change x --ttl 0", f'--ttl: found "0"; accepted: {DURATION}'),
    ("arena make-room 20", f'SIZE: found "20"; accepted: {SIZE}'),
    ("service change x", "nothing to change; give --standbys, --sm, --memory, --heartbeat"),
    ("service change x --standbys -1", '--standbys: found "-1"; accepted: a whole number, 0 to 8'),
    ("service run llm", "missing: COMMAND"),
    ("events lease.* --count 0", '--count: found "0"; accepted: a whole number, 1 to'),
    ("completion fish", 'found "fish"; accepted: bash, zsh, tcsh'),
    ("image restore", "missing: IMAGE"),
)

# What mpsd refuses: status 1.
MPSCTL_REFUSED = (
    ("lease create x --user 1000 --gpu 9", f'"9" names no device of this daemon: expected {GPU}'),
    ("lease create x --user 1000 --memory 7=4G", f'"7" names no device of this daemon: expected {GPU}'),
    ("lease create x --user 1000 --memory 999T", "memory: 1047527424 MiB asked, 0 MiB of 143771 MiB taken"),
    ("lease create x --pid 999999", "no process in mpsd's pid namespace has pid \"999999\" (BAD_REQUEST)"),
    ("lease create x --token short", "token: found 5 characters; accepted: 16 to 128"),
    ("lease create \n --user 1000", 'parameter name: found "\\n"; accepted: printable text'),
    ("lease show 99", "lease 99 does not exist (NO_SUCH_LEASE)"),
    ("lease release nosuch", "user root has no lease with the name nosuch (NO_SUCH_LEASE)"),
    ("why 999999", "no client has pid 999999 (NO_SUCH_CLIENT)"),
    ("terminate 999999", "no client has pid 999999 (NO_SUCH_CLIENT)"),
    ("stop --pid 1", "pid 1 is mpsd's own or one that clients need"),
    ("move 999999 d1", "no client has pid 999999 (NO_SUCH_CLIENT)"),
    ("domain drain nosuch", "no fault domain is called nosuch (NO_SUCH_DOMAIN)"),
    ("domain create --gpu 9", f'"9" names no device of this daemon: expected {GPU}'),
    ("fault 99", "no fault has number 99 (NO_SUCH_FAULT)"),
    ("pardon lease:99", '"lease:99" is neither in quarantine nor suspected; `mpsctl blame` lists the keys'),
    ("arena show nosuch", "no arena is called nosuch (NO_SUCH_ARENA)"),
    ("arena create a/b --capacity 8G", 'parameter name: found "a/b"; accepted: letters, digits, dots'),
    ("arena create x --capacity 1T", "a capacity of 1T for arena x: GPU 0 (GPU-"),
    ("arena create x --capacity 8G --window 4G", "a window of 4G; accepted: the capacity of 8G to 8T"),
    ("arena remove nosuch", "no arena is called nosuch (NO_SUCH_ARENA)"),
    ("arena make-room 20G --gpu 9", f'"9" names no device of this daemon: expected {GPU}'),
    ("service show nosuch", "no arena is called nosuch (NO_SUCH_ARENA)"),
    ("events bogus.*", '"bogus.*" is not a topic; accepted: *, '),
    ("image restore nosuch --directory /nowhere", "/nowhere is no directory: no image was taken there"),
)

MPSD = (
    ("", 2, "missing: COMMAND, one of serve, check and config"),
    ("chek", 2, 'unknown command "chek"; did you mean check?'),
    ("check --bogus", 2, 'unknown argument "--bogus"'),
    ("serve --ready-fd x", 2, "--ready-fd: invalid int value: 'x'"),
    ("serve --backend cpu", 1, 'command line: backend: found "cpu"; accepted: one of "gpu", "sim"'),
    ("config --config /nowhere", 1, "/nowhere"),
)

IMAGES = (
    ("", 2, "missing: VERB"),
    ("lst", 2, 'unknown command "lst"; did you mean list?'),
    ("list extra", 2, "unrecognized arguments: extra"),
    ("copy a", 2, "missing: DIRECTORY"),
    ("limits --keep x", 2, '--keep: found "x"; accepted: a whole number from 1 on'),
    ("prune --older-than 5", 2, '--older-than: found "5"; accepted: a whole number and s, m, h or d'),
    ("limits --quota 5", 2, '--quota: found "5"; accepted: a whole number and M, G or T'),
    ("list --directory /nowhere", 1, "/nowhere is no directory"),
)

# The command language: the vendor's answer (docs/compatibility.md), mpsd's own where the vendor's program would guess.
COMMANDS = (
    ("get_server_lst", 'Unknown command "get_server_lst"\n'),
    ("get_client_list 99", "Server 99 not found\n"),
    ("get_client_list abc", "Server 0 not found\n"),
    ("get_server_status", "A server PID is required\n"),
    ("set_active_thread_percentage 9 200", "Server 9 not found\n"),
    ("set_default_client_priority 9", "Invalid priority value - must be 0 or 1!\n"),
    ("set_default_device_pinned_mem_limit 9 4G", f'Memory limit not set: "9" names no device of this daemon: expected {GPU}'),
    ("start_server -uid x", "A user id (UID) is required to start a new server\n"),
    ("shutdown_server 99", "Server 99 not found\n"),
    ("ps x", "Server not found\n"),
)

CONFIGURATION = (
    ("spare = 1\n", "spare: no such option; did you mean domains.spares?"),
    ("[domains]\nspares = 99\n", "domains.spares: found 99 (a whole number); accepted: a whole number, 0 to 8"),
    ("[domains]\nspares = 'two'\n", 'domains.spares: found "two"; accepted: '),
    ("[stop]\non_sigterm = 'explode'\n", 'stop.on_sigterm: found "explode"; accepted: one of '),
    ("[metrics]\nlisten = 'nowhere'\n", "metrics.listen: "),
    ("domains = 3\n", "domains: "),
    ("[domains\n", "mpsd.toml"),
)

# Requests of mpsd.sock: the method, its parameters, words of the error.
METHODS = (
    ("lease.mak", {}, "lease.mak"),
    ("lease.create", {}, "parameter name is missing: printable text, 1 to 128 characters"),
    ("lease.create", {"name": "x", "selector": 5}, "parameter selector: found 5"),
    ("lease.create", {"name": "x", "selector": {"kind": "moon", "value": "1"}}, 'parameter selector.kind: found "moon"'),
    ("lease.get", {"id": "one"}, 'parameter id: found "one"'),
    ("lease.get", {"id": 1, "colour": "red"}, "colour"),
    ("client.why", {"pid": -1}, "parameter pid: found -1"),
    ("arena.create", {"name": "x", "gpu": "0", "capacity_bytes": 1}, "parameter capacity_bytes: found 1"),
    ("events.subscribe", {"topics": ["nosuch"]}, '"nosuch" is not a topic; accepted: *, '),
    ("fault.get", {"number": True}, "parameter number: found true"),
)
