//! What a host has on its disk: users and their homes, keys, and what servers and clients are told.

use super::{SSH_PORT, TESTER, TESTER_ID, User};
use crate::error::{Call, Checked};
use crate::links::{Own, address_of};
use crate::namespace::Namespace;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What users type into.
pub(super) const SHELL: &str = "/bin/sh";
/// To whom the server's own unprivileged processes belong.
const SERVER_ID: u32 = 4_712;

/// Puts a host's own in the place of the machine's, which is for a mount namespace other than the machine's: `$1`. The
/// host's folder is `$2`, its name `$3`, and the machine's temporary folder `$4`. At the other arguments there are others'
/// mounts, whose paths are not looked at: what serves them may not answer.
const INSTALL: &str = r#"
set -e
[ "$(readlink /proc/self/ns/mnt)" != "$1" ]
shift
folder="$1" name="$2" temporary="$3"
shift 3
for point in "$@"; do
    # One may lie under another mount, where nobody gets at it.
    umount --no-canonicalize --lazy -- "$point" 2> /dev/null || true
done
umask 022
echo "$name" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd /run/own
mount --bind "$folder" /run/own
mount -t tmpfs -o mode=1777 tmp "$temporary"
mkdir -p "$folder"
mount --bind /run/own "$folder"
umount /run/own
rmdir /run/own
mount -t tmpfs -o mode=755 log /var/log
for file in passwd group shadow; do
    [ ! -e "/etc/$file" ] || mount --bind "$folder/etc/$file" "/etc/$file"
done
# As on most systems; here it may be root's alone.
if [ -e /dev/fuse ]; then
    mknod -m 666 /run/fuse c 10 229
    mount --bind /run/fuse /dev/fuse
fi
"#;

/// Keys of all servers and users.
#[derive(Debug)]
pub(super) struct Keys {
    folder: PathBuf,
    hosts: u32,
}

impl Keys {
    /// Makes them, in a folder of their own.
    ///
    /// Errors: those of `ssh-keygen`.
    pub(super) fn make(workspace: &Path, hosts: u32) -> Checked<Self> {
        let folder = workspace.join("keys");
        make_folder(&folder, User::Root, 0o700)?;
        let keys = Self { folder, hosts };
        let servers = (1..=hosts).map(name_of);
        let users = User::ALL.map(|user| user.name().to_owned());
        let makers = servers.chain(users).map(|name| {
            Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", &name, "-f"])
                .arg(keys.folder.join(&name))
                .spawn()
                .call(|| "run ssh-keygen".to_owned())
        });
        for mut maker in makers.collect::<Checked<Vec<_>>>()? {
            let made = maker.wait().call(|| "wait for ssh-keygen".to_owned())?;
            crate::ensure!(made.success(), "ssh-keygen ended with {made}");
        }
        Ok(keys)
    }

    fn secret(&self, name: &str) -> Checked<String> {
        read(&self.folder.join(name))
    }

    fn public(&self, name: &str) -> Checked<String> {
        read(&self.folder.join(format!("{name}.pub")))
    }

    /// Which server has which key.
    fn known_hosts(&self) -> Checked<String> {
        let line = |host| {
            let name = name_of(host);
            let key = self.public(&name)?;
            Ok(format!("{name},{} {key}", address_of(host)))
        };
        (1..=self.hosts).map(line).collect()
    }
}

/// One host's.
#[derive(Debug)]
pub(super) struct Equipment {
    pub(super) host: u32,
    pub(super) address: Ipv4Addr,
    pub(super) folder: PathBuf,
}

impl Equipment {
    pub(super) fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    pub(super) fn home(&self, user: User) -> PathBuf {
        home(&self.folder, user)
    }

    pub(super) fn server_config(&self) -> PathBuf {
        self.folder.join("sshd/config")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("sshd/log")
    }

    /// Makes all of it.
    ///
    /// Errors: those of writing.
    pub(super) fn make(&self, keys: &Keys) -> Checked {
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent).call(|| format!("make {}", parent.display()))?;
        }
        make_folder(&self.folder, User::Root, 0o755)?;
        make_folder(&self.disk(), User::Tester, 0o755)?;
        for user in User::ALL {
            make_folder(&self.home(user), user, 0o700)?;
        }
        self.make_users()?;
        if self.host == 0 {
            User::ALL
                .into_iter()
                .try_for_each(|user| self.make_client(user, keys))
        } else {
            self.make_server(keys)
        }
    }

    fn make_users(&self) -> Checked {
        let folder = self.folder.join("etc");
        make_folder(&folder, User::Root, 0o755)?;
        let home = |user| self.home(user).to_string_lossy().into_owned();
        let (root, tester) = (home(User::Root), home(User::Tester));
        let passwd = format!(
            "root:x:0:0:root:{root}:{SHELL}\n\
             {TESTER}:x:{TESTER_ID}:{TESTER_ID}:{TESTER}:{tester}:{SHELL}\n\
             sshd:x:{SERVER_ID}:65534::/run/sshd:/usr/sbin/nologin\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\ntty:x:5:\n{TESTER}:x:{TESTER_ID}:\nnogroup:x:65534:\n");
        // A login without a password, which the system does not call locked.
        let line = |name: &str| format!("{name}:*:20000:0:99999:7:::\n");
        let shadow: String = ["root", TESTER, "sshd", "nobody"].map(line).concat();
        write_file(&folder.join("passwd"), &passwd, User::Root, 0o644)?;
        write_file(&folder.join("group"), &group, User::Root, 0o644)?;
        write_file(&folder.join("shadow"), &shadow, User::Root, 0o600)
    }

    fn make_server(&self, keys: &Keys) -> Checked {
        let folder = self.folder.join("sshd");
        make_folder(&folder, User::Root, 0o755)?;
        let secret = keys.secret(&name_of(self.host))?;
        let key = folder.join("key");
        write_file(&key, &secret, User::Root, 0o600)?;
        let authorized = folder.join("authorized_keys");
        let users = User::ALL.map(|user| keys.public(user.name()));
        let users: String = users.into_iter().collect::<Checked<_>>()?;
        write_file(&authorized, &users, User::Root, 0o644)?;
        let config = format!(
            "ListenAddress {address}\n\
             Port {SSH_PORT}\n\
             HostKey \"{key}\"\n\
             AuthorizedKeysFile \"{authorized}\"\n\
             PermitRootLogin prohibit-password\n\
             PasswordAuthentication no\n\
             KbdInteractiveAuthentication no\n\
             UsePAM no\n\
             UseDNS no\n\
             StrictModes no\n\
             PrintMotd no\n\
             PrintLastLog no\n\
             PidFile none\n\
             MaxStartups 1000\n\
             MaxSessions 1000\n\
             LogLevel VERBOSE\n\
             Subsystem sftp internal-sftp\n",
            address = self.address,
            key = key.display(),
            authorized = authorized.display(),
        );
        write_file(&self.server_config(), &config, User::Root, 0o644)
    }

    fn make_client(&self, user: User, keys: &Keys) -> Checked {
        let folder = self.home(user).join(".ssh");
        make_folder(&folder, user, 0o700)?;
        let key = folder.join("id_ed25519");
        write_file(&key, &keys.secret(user.name())?, user, 0o600)?;
        let public = folder.join("id_ed25519.pub");
        write_file(&public, &keys.public(user.name())?, user, 0o644)?;
        let known = folder.join("known_hosts");
        let hosts = keys.known_hosts()?;
        write_file(&known, &hosts, user, 0o644)?;
        let mut config = String::new();
        for host in 1..=keys.hosts {
            // Writing to a string cannot fail.
            _ = write!(
                config,
                "Host {}\n    HostName {}\n",
                name_of(host),
                address_of(host)
            );
        }
        _ = write!(
            config,
            "Host *\n    \
                 User {}\n    \
                 Port {SSH_PORT}\n    \
                 IdentityFile \"{}\"\n    \
                 IdentitiesOnly yes\n    \
                 IdentityAgent none\n    \
                 UserKnownHostsFile \"{}\"\n    \
                 GlobalKnownHostsFile /dev/null\n    \
                 StrictHostKeyChecking yes\n    \
                 ControlMaster no\n    \
                 BatchMode yes\n",
            user.name(),
            key.display(),
            known.display()
        );
        write_file(&client_config(&self.folder, user), &config, user, 0o600)
    }

    /// Has the host use what was made for it, and nothing that is mounted at `theirs`.
    ///
    /// Errors: those of mounting.
    pub(super) fn install(
        &self,
        namespace: &Namespace,
        temporary: &Path,
        theirs: &[PathBuf],
    ) -> Checked {
        namespace.ensure_apart(Own::Files)?;
        let machine = fs::read_link("/proc/self/ns/mnt");
        let machine = machine.call(|| "look at the machine's mounts".to_owned())?;
        let name = name_of(self.host);
        let mut arguments = vec![&*machine, &*self.folder, Path::new(&name), temporary];
        arguments.extend(theirs.iter().map(PathBuf::as_path));
        namespace.run_with(INSTALL, &arguments)?;
        if namespace.has_processes() {
            namespace.run("mount -t proc proc /proc")?;
        }
        Ok(())
    }
}

/// As `ssh` knows a host, and as it calls itself.
pub(super) fn name_of(host: u32) -> String {
    format!("h{host}")
}

/// The folder of all that a host has for itself.
pub(super) fn machine(workspace: &Path, host: u32) -> PathBuf {
    folder(workspace).join(name_of(host))
}

/// Where those of all hosts are. Nothing is mounted in it but on hosts, and there each one's own.
pub(crate) fn folder(workspace: &Path) -> PathBuf {
    workspace.join("hosts")
}

/// What a user's clients are told.
pub(super) fn client_config(machine: &Path, user: User) -> PathBuf {
    home(machine, user).join(".ssh/config")
}

fn home(machine: &Path, user: User) -> PathBuf {
    machine.join(format!("home-{}", user.name()))
}

fn read(file: &Path) -> Checked<String> {
    fs::read_to_string(file).call(|| format!("read {}", file.display()))
}

fn make_folder(folder: &Path, owner: User, mode: u32) -> Checked {
    fs::create_dir(folder).call(|| format!("make {}", folder.display()))?;
    give(folder, owner, mode)
}

fn write_file(file: &Path, text: &str, owner: User, mode: u32) -> Checked {
    fs::write(file, text).call(|| format!("write {}", file.display()))?;
    give(file, owner, mode)
}

/// Whatever this process's own mask is.
fn give(path: &Path, owner: User, mode: u32) -> Checked {
    let id = Some(owner.id());
    let given =
        chown(path, id, id).and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    given.call(|| format!("give {} to {}", path.display(), owner.name()))
}
