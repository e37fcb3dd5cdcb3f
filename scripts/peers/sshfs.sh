#!/bin/bash
# sshfs.sh: a directory of host 1 over SSH, with keys of its own: one copy. See common.sh.
peer=sshfs
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(readlink -f "$0")")/common.sh"

describe() { echo "sshfs 1"; }
is_installed() { command -v sshfs ssh-keygen >/dev/null && [[ -x /usr/sbin/sshd ]]; }
install_it() { packages sshfs openssh-server openssh-client fuse3; }

answers() { on "$client" bash -c "exec 3<>/dev/tcp/$(address 1)/2222"; }

up() {
    mkdir -p "$store/files" /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$store/user"
    ssh-keygen -q -t ed25519 -N '' -f "$store/host"
    echo "[$(address 1)]:2222 $(cut -d ' ' -f 1,2 "$store/host.pub")" >"$store/known"
    printf '%s\n' "Port 2222" "ListenAddress $(address 1)" "HostKey $store/host" \
        "AuthorizedKeysFile $store/user.pub" "StrictModes no" "PasswordAuthentication no" "UsePAM no" \
        "PermitRootLogin prohibit-password" "PidFile none" "Subsystem sftp internal-sftp" >"$store/sshd.conf"
    start_on 1 "$store/sshd.log" /usr/sbin/sshd -D -e -f "$store/sshd.conf"
    await 10 answers
}

mount_at() {
    local options="port=2222,IdentityFile=$store/user,UserKnownHostsFile=$store/known,IdentitiesOnly=yes"
    on "$client" sshfs -o "$options,StrictHostKeyChecking=yes" "root@$(address 1):$store/files" "$1"
}

main "$@"
