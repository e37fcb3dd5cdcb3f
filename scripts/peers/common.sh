# Sourced by the script of each peer, which sets `peer`: hosts of its own on this machine, as network namespaces on a
# bridge that leads nowhere else. Hosts 1, 2 and 3 serve, host 9 mounts. What runs in them is the peer's.
#
# A peer's script says `describe` (its label and how many copies of each byte it keeps), and has the functions
# `is_installed`, `install_it`, `up`, `mount_at DIR`; `main "$@"` does the rest.
# shellcheck shell=bash
set -euo pipefail

hosts=(1 2 3 9)
servers=(1 2 3)
client=9
# what it keeps: PEER_ROOT is the folder of a run
store=${PEER_ROOT:-/tmp/perigee-peers}/${peer:?the script of a peer sets it}

space() { echo "pp-$peer-$1"; }
address() { echo "10.79.0.$1"; }

# runs a command on HOST: its network, and this machine's files
on() {
    local host=$1
    shift
    nsenter --net="/run/netns/$(space "$host")" -- "$@"
}

# as `on`, in the background, with what it says in a file; it is ended by `down`
start_on() {
    local host=$1 log=$2
    shift 2
    nsenter --net="/run/netns/$(space "$host")" -- setsid "$@" >>"$log" 2>&1 </dev/null &
}

network_up() {
    local host switch
    switch=$(space switch)
    ip netns add "$switch"
    ip -n "$switch" link add bridge type bridge
    ip -n "$switch" link set bridge up
    for host in "${hosts[@]}"; do
        ip netns add "$(space "$host")"
        ip link add "port$host" netns "$switch" type veth peer name eth0 netns "$(space "$host")"
        ip -n "$switch" link set "port$host" master bridge up
        ip -n "$(space "$host")" addr add "$(address "$host")/24" dev eth0
        ip -n "$(space "$host")" link set eth0 up
        ip -n "$(space "$host")" link set lo up
    done
}

# what runs in the hosts
pids() {
    local host
    for host in "${hosts[@]}"; do
        ip netns pids "$(space "$host")" 2>/dev/null || true
    done
}

# waits up to SECONDS for a command to work
await() {
    local seconds=$1 until
    shift
    until=$((SECONDS + seconds))
    while ((SECONDS <= until)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    echo "$peer: gave up after $seconds s: $*" >&2
    return 1
}

signal_all() {
    local pid
    for pid in $(pids); do kill "-$1" "$pid" 2>/dev/null || true; done
}

nothing_runs() { [[ -z $(pids) ]]; }

down() {
    local host mounted
    for mounted in $(awk -v store="$store" 'index($2, store) == 1 {print $2}' /proc/mounts | sort -r); do
        umount "$mounted" 2>/dev/null || umount --lazy "$mounted" || true
    done
    signal_all TERM
    await 10 nothing_runs 2>/dev/null || signal_all KILL
    await 10 nothing_runs || true
    for host in "${hosts[@]}" switch; do ip netns delete "$(space "$host")" 2>/dev/null || true; done
    rm -rf --one-file-system "$store"
}

packages() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
}

main() {
    case ${1:-} in
        describe) describe ;;
        installed) is_installed ;;
        install) is_installed || install_it ;;
        up)
            mkdir -p "$store"
            network_up
            up
            ;;
        mount)
            mkdir -p "$store/mount"
            mount_at "$store/mount" >&2
            await 30 mountpoint --quiet "$store/mount"
            echo "$store/mount"
            ;;
        pids) pids ;;
        down) down ;;
        *)
            echo "usage: $0 describe | installed | install | up | mount | pids | down" >&2
            exit 2
            ;;
    esac
}
