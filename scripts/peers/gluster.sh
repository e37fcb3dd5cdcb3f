#!/bin/bash
# gluster.sh: GlusterFS on three hosts, one volume of three replicas. See common.sh.
peer=gluster
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(readlink -f "$0")")/common.sh"

describe() { echo "GlusterFS 3"; }
is_installed() { command -v glusterd glusterfs gluster >/dev/null; }
install_it() { packages glusterfs-server glusterfs-client attr; }

# The daemons of a host have the folders of the package to themselves.
daemon() {
    local host=$1 own=$store/$1
    mkdir -p "$own"/{lib,run,log,brick} /run/gluster /var/log/glusterfs
    cp -a /var/lib/glusterd/. "$own/lib/"
    # Who a daemon is lies there.
    rm -f "$own/lib/glusterd.info"
    sed "s#^end-volume#    option glusterd-sockfile $own/socket\nend-volume#" /etc/glusterfs/glusterd.vol >"$own/glusterd.vol"
    # shellcheck disable=SC2016
    nsenter --net="/run/netns/$(space "$host")" -- unshare --mount --uts -- bash -c '
        set -e
        hostname "peer-$1"
        mount --bind "$2/lib" /var/lib/glusterd
        mount --bind "$2/run" /run/gluster
        mount --bind "$2/log" /var/log/glusterfs
        exec glusterd -f "$2/glusterd.vol" -p "$2/glusterd.pid" -l "$2/log/glusterd.log"' -- "$host" "$own"
}

ask() { on 1 gluster --mode=script --glusterd-sock="$store/1/socket" "$@"; }
connected() { (($(ask pool list | grep --count Connected) == ${#servers[@]})); }
served() { (($(ask volume status all detail | grep --count 'Online.*: Y') == ${#servers[@]})); }

up() {
    local host bricks=()
    for host in "${servers[@]}"; do
        daemon "$host"
        bricks+=("$(address "$host"):$store/$host/brick")
    done
    await 30 ask pool list
    for host in 2 3; do ask peer probe "$(address "$host")" >/dev/null; done
    await 30 connected
    ask volume create bench replica 3 "${bricks[@]}" force >/dev/null
    ask volume start bench >/dev/null
    await 30 served
}

mount_at() {
    on "$client" glusterfs --volfile-server="$(address 1)" --volfile-id=bench --log-file="$store/mount.log" "$1"
}

main "$@"
