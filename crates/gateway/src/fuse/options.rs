//! Mount options, as `-o` and `/etc/fstab` write them.

use super::watchdog::WatchdogCommand;
use thiserror::Error;

/// How a file system is mounted.
///
/// The defaults are those of a careful host: no device nodes and no set-id programs.
/// Permissions are always checked by the kernel (mode bits and ACLs).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`: nothing can be changed through this mount.
    pub read_only: bool,
    /// `dev`: device nodes work. Root only.
    pub devices: bool,
    /// `suid`: set-id programs work. Root only.
    pub set_id: bool,
    /// `exec` (default) or `noexec`: programs can be run.
    pub exec: bool,
    /// `noatime`: the kernel does not ask for times of access.
    pub no_atime: bool,
    /// `allow_other`: other users than the one who mounts may enter. `None`: yes when root mounts.
    pub allow_other: Option<bool>,
    /// `nonempty`: the mount point may have entries, which the mount hides.
    pub non_empty: bool,
    /// `passthrough` (default), `passthrough=readers` or `nopassthrough`. Has an effect when root mounts.
    pub passthrough: Passthrough,
    /// `lowlatency` (default) or `nolowlatency`: idle processors are kept from sleeping while requests come
    /// briskly. Has an effect when root mounts.
    pub low_latency: bool,
    /// `fsname=NAME`: the source that `mount` and `df` show.
    pub source: String,
    /// `threads=N`: threads that take requests, 1 to 64. `None`: one for each processor, 2 to 8.
    pub threads: Option<usize>,
    /// `read_ahead_kb=N`: how far the kernel reads ahead, KiB, up to 16384. Takes root.
    pub read_ahead_kb: u32,
    /// `max_background=N`: read-ahead requests under way at once, 1 to 1024.
    pub max_background: u16,
    /// Who keeps the locks of this mount's programs; no option can say.
    pub locks: Locks,
    /// Who ends the mount's requests when this process is killed; no option can say. `None`: nobody, and what
    /// touches the mount then may hang.
    pub watchdog: Option<WatchdogCommand>,
}

/// Who keeps `fcntl` and `flock` locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// The file system (default): all hosts see them.
    FileSystem,
    /// The kernel, for the programs of this mount alone.
    Kernel,
}

/// Which programs read and write files past the daemon, whose bytes are all on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// None.
    None,
    /// Those that read.
    Readers,
    /// Those that write, too, while their host alone uses the file (default).
    All,
}

/// 4 MiB: four of the largest requests are on their way while the four before them are read, which fills links of up to
/// 1 Gbit/s and 30 ms.
const READ_AHEAD_KB: u32 = 4096;
/// Sixteen sequential readers with all their read-ahead on its way.
const MAX_BACKGROUND: u16 = 128;

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            devices: false,
            set_id: false,
            exec: true,
            no_atime: false,
            allow_other: None,
            non_empty: false,
            passthrough: Passthrough::All,
            low_latency: true,
            source: "perigee".to_owned(),
            threads: None,
            read_ahead_kb: READ_AHEAD_KB,
            max_background: MAX_BACKGROUND,
            locks: Locks::FileSystem,
            watchdog: None,
        }
    }
}

/// Why an option is refused.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option `{option}`")]
    Unknown {
        /// As written.
        option: String,
    },
    /// The option takes a value, and it is not one of these.
    #[error("mount option `{option}` has the value `{value}`, but takes {takes}")]
    Value {
        /// Its name.
        option: String,
        /// As written; empty when there was none.
        value: String,
        /// What it takes.
        takes: &'static str,
    },
    /// The option exists, but this mount cannot do it.
    #[error("mount option `{option}` is not possible: {reason}")]
    Impossible {
        /// As written.
        option: String,
        /// Why not.
        reason: &'static str,
    },
}

impl MountOptions {
    /// Reads options; each text may hold several, with commas between. A later one wins.
    ///
    /// Those of mount(8) that concern when and by whom something is mounted (`noauto`, `_netdev`,
    /// `user`, `x-…` and the like) are accepted, and mean nothing here.
    ///
    /// Errors: the first option that is unknown, has a bad value, or cannot be done.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for option in texts.into_iter().flat_map(|text| text.split(',')) {
            options.set(option.trim())?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("", None) | ("defaults", None) => {}
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("dev", None) => self.devices = true,
            ("nodev", None) => self.devices = false,
            ("suid", None) => self.set_id = true,
            ("nosuid", None) => self.set_id = false,
            ("exec", None) => self.exec = true,
            ("noexec", None) => self.exec = false,
            ("noatime", None) => self.no_atime = true,
            ("atime" | "relatime", None) => self.no_atime = false,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("nonempty", None) => self.non_empty = true,
            ("passthrough", None) => self.passthrough = Passthrough::All,
            ("passthrough", Some("readers")) => self.passthrough = Passthrough::Readers,
            ("nopassthrough", None) => self.passthrough = Passthrough::None,
            ("lowlatency", None) => self.low_latency = true,
            ("nolowlatency", None) => self.low_latency = false,
            ("default_permissions", None) => {}
            ("fsname", value) => self.source = source(value)?,
            ("threads", value) => self.threads = Some(number(name, value, 1..=64, "1 to 64")?),
            ("read_ahead_kb", value) => {
                self.read_ahead_kb = number(name, value, 0..=16384, "0 to 16384 (KiB)")?;
            }
            ("max_background", value) => {
                self.max_background = number(name, value, 1..=1024, "1 to 1024 (requests)")?;
            }
            _ => return classify(option, name),
        }
        Ok(())
    }
}

/// The name goes into a list of options for the kernel, so it must not look like one.
fn source(value: Option<&str>) -> Result<String, OptionError> {
    let takes = "a name without commas, backslashes and control characters";
    let bad = |c: char| c == ',' || c == '\\' || c.is_control();
    match value {
        Some(name) if !name.is_empty() && !name.contains(bad) => Ok(name.to_owned()),
        _ => Err(OptionError::Value {
            option: "fsname".to_owned(),
            value: value.unwrap_or_default().to_owned(),
            takes,
        }),
    }
}

fn number<T: std::str::FromStr + PartialOrd>(
    option: &str,
    value: Option<&str>,
    range: std::ops::RangeInclusive<T>,
    takes: &'static str,
) -> Result<T, OptionError> {
    let parsed = value.and_then(|text| text.parse().ok());
    parsed
        .filter(|number| range.contains(number))
        .ok_or_else(|| OptionError::Value {
            option: option.to_owned(),
            value: value.unwrap_or_default().to_owned(),
            takes,
        })
}

/// Options of mount(8) itself are passed on to us, and concern others; the rest is a mistake.
fn classify(option: &str, name: &str) -> Result<(), OptionError> {
    const OF_MOUNT: [&str; 12] = [
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "async",
        "nostrictatime",
        "nolazytime",
    ];
    let impossible = |reason| {
        Err(OptionError::Impossible {
            option: option.to_owned(),
            reason,
        })
    };
    if OF_MOUNT.contains(&option) || name.starts_with("x-") || name == "comment" {
        return Ok(());
    }
    match name {
        "nodefault_permissions" => impossible("the kernel checks permissions on every mount"),
        "allow_root" => impossible("use `allow_other`; permissions are checked by the kernel"),
        "auto_unmount" => impossible("the mount ends with its daemon already"),
        "writeback_cache" => impossible("it excludes passthrough, which is faster"),
        "sync" | "dirsync" => impossible("use fsync, which waits for every replica"),
        _ => Err(OptionError::Unknown {
            option: option.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_order_and_the_last_wins() {
        let options =
            MountOptions::parse(["ro,dev,suid", "rw,threads=3,fsname=home", "noexec"]).unwrap();
        assert_eq!(
            options,
            MountOptions {
                devices: true,
                set_id: true,
                exec: false,
                threads: Some(3),
                source: "home".to_owned(),
                ..MountOptions::default()
            }
        );
    }

    #[test]
    fn what_fstab_carries_for_others_is_accepted() {
        let fstab = "defaults,noauto,_netdev,nofail,x-systemd.automount,x-gvfs-name=a";
        assert_eq!(
            MountOptions::parse([fstab]).unwrap(),
            MountOptions::default()
        );
    }

    #[test]
    fn a_mistake_is_named() {
        let refused = |text| MountOptions::parse([text]).unwrap_err().to_string();
        assert_eq!(refused("ro,nonempti"), "unknown mount option `nonempti`");
        assert_eq!(
            refused("threads=0"),
            "mount option `threads` has the value `0`, but takes 1 to 64"
        );
        assert_eq!(
            refused("threads"),
            "mount option `threads` has the value ``, but takes 1 to 64"
        );
        assert!(refused("ro=1").contains("unknown mount option `ro=1`"));
        assert!(refused("writeback_cache").contains("excludes passthrough"));
    }

    #[test]
    fn a_source_cannot_smuggle_in_an_option() {
        assert!(MountOptions::parse(["fsname="]).is_err());
        assert!(MountOptions::parse(["fsname=a\\,b"]).is_err());
    }
}
