# Functions for scripts in a guest: waiting, and conditions about logs of `nearpage live`. Waiting ends after five minutes, or
# after the given seconds; then the tests name what is missing.
wait_for() {    # CONDITION [SECONDS]
    now() { cut -d . -f 1 /proc/uptime; }
    until=$(($(now) + ${2:-300}))
    since=$(now)
    until eval "$1" 2>/dev/null || [ "$(now)" -ge $until ]; do sleep 0.2; done
    echo "waited $(($(now) - since)) s until: $1" >&2
}
end_once() {    # FILE CONDITION [SECONDS]
    wait_for "$2" "${3:-}"
    : >"$1"
}
is_even() {     # NAME: the largest anonymous mapping of the process is spread evenly over four nodes
    grep ' anon=' /proc/"$(pgrep -nx "$1")"/numa_maps | awk '{
        all = nodes = most = 0; least = 1e9
        for (at = 1; at <= NF; at++) if (split($at, part, "=") == 2 && part[1] ~ /^N[0-9]+$/) {
            all += part[2]; nodes++
            if (part[2] > most) most = part[2]
            if (part[2] < least) least = part[2]
        }
        if (all > largest) { largest = all; even = nodes == 4 && most <= 1.2 * least }
    } END { exit !even }'
}
becomes_local() { # NAME LOG LINE [THOUSANDTHS]: from that line on pages move while its accesses are remote, then local
    # Before the first move, a program may touch its libraries, which is remote, and then alone its data, which is not.
    # Lines may have a megabyte each: a look reads those that came since the one before.
    from=$(cat "$2.$3.next" 2>/dev/null || echo "$3")
    lines=$(wc -l <"$2")
    [ "$lines" -lt "$from" ] || {
        tail -n +"$from" "$2" | head -n $((lines - from + 1)) |
            grep -o "\"name\":\"$1\"[^}]*\"moved\":[0-9]*" |
            sed 's/.*"local_per_1000":\([0-9]*\).*:/\1 /' >>"$2.$3.local"
        echo $((lines + 1)) >"$2.$3.next"
    }
    awk -v enough="${4:-950}" '{ moved += $2 } moved && $1 < enough - 150 { remote = 1 }
        remote && $1 >= enough { local = 1 } END { exit !local }' "$2.$3.local"
}
threads_of() {  # NAME: in the order in which they were created
    echo /proc/"$(pgrep -nx "$1")"/task/* | tr ' ' '\n' | sort -t / -k 5n
}
may_run_on() {  # NAME: CPUs of each thread
    for task in $(threads_of "$1"); do sed -n 's/^Cpus_allowed_list:\t//p' "$task"/status; done
}
run_on() {      # NAME: CPU of each thread
    for task in $(threads_of "$1"); do cut -d ' ' -f 39 "$task"/stat; done
}
part() {        # NAME: of its eight threads two neighbours to each CPU, and then to wherever they are told
    at=0
    for task in $(threads_of "$1"); do
        taskset -pc $((at / 2)) "${task##*/}"
        at=$((at + 1))
    done >/dev/null
    for task in $(threads_of "$1"); do taskset -pc 0-3 "${task##*/}"; done >/dev/null
}
together() {    # NAME: of its eight threads how often K and K + 4 are on one CPU
    run_on "$1" | awk '{ cpu[NR] = $1 } END { for (at = 1; at <= 4; at++) pairs += cpu[at] == cpu[at + 4]; print pairs }'
}
shift_threads() { # NAME: each thread to the CPU after its own
    cpu=0
    for task in /proc/"$(pgrep -nx "$1")"/task/*; do
        cpu=$(((cpu + 1) % 4))
        taskset -pc $cpu "${task##*/}" >/dev/null
    done
}
