#!/usr/bin/env bash
# Installs what is missing for: build, mount, test or bench. Silent and quick when nothing is.
#
# Debian packages come from apt-get, the Rust toolchain from Debian's package `rustup` where there is
# one (Debian 13 and later), else from rustup's own installer (https://rustup.rs). Without root it
# says in one line what to install, and fails.
set -euo pipefail

purpose=${1:-build}
# must be that of rust-version in Cargo.toml
rust_min=1.90
export PATH="$PATH:$HOME/.cargo/bin"

build_packages=(build-essential git ca-certificates curl)
mount_packages=(fuse3)
test_packages=(attr acl e2fsprogs iproute2 mount)
bench_packages=(fio sshfs mergerfs)
# without it the tests of etcd say that they are skipped
wanted_packages=()

packages=("${build_packages[@]}")
case $purpose in
    build) ;;
    mount) packages+=("${mount_packages[@]}") ;;
    test)
        packages+=("${mount_packages[@]}" "${test_packages[@]}")
        wanted_packages=(etcd-server)
        ;;
    bench) packages+=("${mount_packages[@]}" "${bench_packages[@]}") ;;
    *)
        echo "usage: $0 [build|mount|test|bench]" >&2
        exit 2
        ;;
esac

is_installed() {
    [[ $(dpkg-query --show --showformat='${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    echo "installing $*"
    # the lists may be absent or old: they are fetched only when the first try fails
    apt-get install --yes --no-install-recommends "$@" >/dev/null 2>&1 || {
        apt-get update >/dev/null
        apt-get install --yes --no-install-recommends "$@" >/dev/null
    }
}

rust_is_fine() {
    local version
    version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [[ -n $version && $(printf '%s\n' "$rust_min" "$version" | sort --version-sort | head -n 1) == "$rust_min" ]] &&
        cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

install_rust() {
    if ! command -v rustup >/dev/null; then
        if ((EUID == 0)) && apt-cache show rustup >/dev/null 2>&1; then
            install_packages rustup
        else
            echo "installing the Rust toolchain with rustup's installer"
            curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://sh.rustup.rs |
                sh -s -- -y --quiet --no-modify-path --profile minimal --default-toolchain none
        fi
    fi
    rustup toolchain install stable --profile minimal --component clippy,rustfmt
    rustup default stable
}

missing=()
if command -v dpkg-query >/dev/null; then
    for package in "${packages[@]}"; do
        is_installed "$package" || missing+=("$package")
    done
else
    # not a Debian: only what has a command of its own can be looked for
    command -v cc >/dev/null || missing+=("a C compiler")
    [[ $purpose == build ]] || command -v fusermount3 >/dev/null || missing+=(fuse3)
fi

if ((${#missing[@]} > 0)); then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        install_packages "${missing[@]}"
    else
        echo "error: please install: ${missing[*]} (on Debian: sudo apt-get install ${missing[*]})" >&2
        exit 1
    fi
fi

# The tests start processes of their own: the package's service is not to run.
if [[ ${#wanted_packages[@]} -gt 0 && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    for package in "${wanted_packages[@]}"; do
        if ! is_installed "$package"; then
            [[ ! -d /run/systemd/system ]] || systemctl --quiet mask "${package%-server}.service"
            install_packages "$package" || echo "no $package here: its tests are skipped" >&2
        fi
    done
fi

rust_is_fine || install_rust
if ! rust_is_fine; then
    echo "error: Rust $rust_min or later with clippy and rustfmt is needed, found $(rustc --version 2>&1)" >&2
    exit 1
fi
