#!/bin/bash
# moosefs.sh: MooseFS, a master on host 1 and chunk servers on all three, goal 3, no trash. See common.sh.
peer=moosefs
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(readlink -f "$0")")/common.sh"

describe() { echo "MooseFS 3"; }
is_installed() { command -v mfsmaster mfschunkserver mfsmount mfssetgoal >/dev/null; }
install_it() { packages moosefs-master moosefs-chunkserver moosefs-client moosefs-cli; }

# Its daemons ask for a priority above everybody's: here all are alike.
configure() {
    local host=$1 own=$store/$1
    mkdir -p "$own"/{master,chunks,disk}
    echo "$own/disk" >"$own/disks.cfg"
    printf '* / rw,alldirs,admin,maproot=0:0\n* . rw\n' >"$own/exports.cfg"
    printf '%s = %s\n' WORKING_USER root WORKING_GROUP root NICE_LEVEL 0 DATA_PATH "$own/master" \
        EXPORTS_FILENAME "$own/exports.cfg" >"$own/master.cfg"
    printf '%s = %s\n' WORKING_USER root WORKING_GROUP root NICE_LEVEL 0 DATA_PATH "$own/chunks" \
        HDD_CONF_FILENAME "$own/disks.cfg" MASTER_HOST "$(address 1)" >"$own/chunks.cfg"
}

all_serve() {
    local found
    found=$(on 1 mfscli -H "$(address 1)" -SCS -p 2>/dev/null | grep --count '^chunk servers:.*9422')
    ((found == ${#servers[@]}))
}

up() {
    local host
    for host in "${servers[@]}"; do configure "$host"; done
    cp /var/lib/mfs/metadata.mfs.empty "$store/1/master/metadata.mfs"
    on 1 mfsmaster -a -c "$store/1/master.cfg" start >>"$store/log" 2>&1
    for host in "${servers[@]}"; do
        on "$host" mfschunkserver -c "$store/$host/chunks.cfg" start >>"$store/log" 2>&1
    done
    await 60 all_serve
}

mount_at() {
    on "$client" mfsmount "$1" -H "$(address 1)" -o mfsnice=0 >>"$store/log" 2>&1
    await 30 mountpoint --quiet "$1"
    on "$client" mfssetgoal 3 "$1" >>"$store/log"
    on "$client" mfssettrashtime 0 "$1" >>"$store/log"
}

main "$@"
