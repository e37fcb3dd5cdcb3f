#!/bin/bash
# cephfs.sh: CephFS, a monitor, a manager and a metadata server on host 1, and on each of the three one OSD, whose
# device is a sparse file; pools of three copies; no authentication; mounted by ceph-fuse. See common.sh.
peer=cephfs
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(readlink -f "$0")")/common.sh"
device_bytes=$((20 << 30))

describe() { echo "CephFS 3"; }
is_installed() { command -v ceph ceph-mon ceph-mgr ceph-mds ceph-osd ceph-fuse monmaptool >/dev/null; }
install_it() { packages ceph-mon ceph-mgr ceph-mds ceph-osd ceph-common ceph-fuse; }

configuration=$store/ceph.conf
monitor="[v2:$(address 1):3300,v1:$(address 1):6789]"
asks() { on 1 timeout 20 ceph --conf "$configuration" "$@"; }
says() { asks "$@" 2>>"$store/log" | grep --quiet "$says"; }

configure() {
    local fsid=$1 role
    {
        printf '[global]\n'
        printf '%s = %s\n' fsid "$fsid" mon_host "$monitor" mon_initial_members first keyring /dev/null
        for role in cluster service client; do echo "auth_${role}_required = none"; done
        printf '%s = %s\n' osd_pool_default_size 3 osd_pool_default_min_size 2 osd_pool_default_pg_autoscale_mode off \
            osd_crush_update_on_start false osd_memory_target 1G log_file "$store/\$name.log" \
            admin_socket "$store/\$name.\$pid.socket" pid_file "$store/\$name.pid" run_dir "$store" \
            mon_data "$store/mon" mgr_data "$store/mgr" mds_data "$store/mds" osd_data "$store/osd.\$id" \
            bluestore_block_create true bluestore_block_size "$device_bytes" mgr_initial_modules ''
    } >"$configuration"
}

# The monitor, which has to be there before anything else asks it.
monitor_up() {
    local fsid
    fsid=$(</proc/sys/kernel/random/uuid)
    configure "$fsid"
    mkdir -p "$store"/{mon,mgr,mds}
    monmaptool --create --fsid "$fsid" --addv first "$monitor" "$store/monmap" >>"$store/log"
    on 1 ceph-mon --conf "$configuration" --mkfs --id first --monmap "$store/monmap" >>"$store/log" 2>&1
    start_on 1 "$store/log" ceph-mon --conf "$configuration" --id first --foreground
    await 30 asks mon stat
}

osd_up() {
    local host=$1 id uuid
    uuid=$(</proc/sys/kernel/random/uuid)
    id=$(asks osd new "$uuid")
    mkdir -p "$store/osd.$id"
    on "$host" ceph-osd --conf "$configuration" --id "$id" --mkfs --osd-uuid "$uuid" >>"$store/log" 2>&1
    asks osd crush add "$id" 1.0 root=default "host=host$host" >>"$store/log" 2>&1
    start_on "$host" "$store/log" ceph-osd --conf "$configuration" --id "$id" --foreground \
        --public-addr "$(address "$host")" --cluster-addr "$(address "$host")"
}

up() {
    local host
    monitor_up
    start_on 1 "$store/log" ceph-mgr --conf "$configuration" --id first --foreground
    for host in "${servers[@]}"; do osd_up "$host"; done
    says="${#servers[@]} up" await 60 says osd stat
    asks osd pool create names 16 >>"$store/log" 2>&1
    asks osd pool create bytes 32 >>"$store/log" 2>&1
    asks fs new files names bytes >>"$store/log" 2>&1
    start_on 1 "$store/log" ceph-mds --conf "$configuration" --id first --foreground
    says=up:active await 60 says mds stat
}

mount_at() { on "$client" ceph-fuse --conf "$configuration" --name client.admin "$1" >>"$store/log" 2>&1; }

main "$@"
