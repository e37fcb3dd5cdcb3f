//! Mount options, as in `-o ro,allow_other`, on the command line and in /etc/fstab.

use perigee_proto::admin::Failure;

/// What a mount may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// No changes through this mount.
    pub read_only: bool,
    /// Every user of the machine, not only the one who mounts; the kernel checks permissions.
    pub allow_other: bool,
    /// Set-id bits have effect.
    pub suid: bool,
    /// Device files have effect.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// The node that serves the mount, where the source is a cluster directory.
    pub node: Option<u32>,
}

impl Default for MountOptions {
    /// Everybody where root mounts, else the user alone; no set-id, no devices.
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            suid: false,
            dev: false,
            exec: true,
            node: None,
        }
    }
}

impl MountOptions {
    /// Reads options, each of which may be a list with commas. The last of two that disagree holds.
    ///
    /// Errors: the first option that Perigee does not know.
    pub fn parse<S: AsRef<str>>(lists: &[S]) -> Result<Self, Failure> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| list.as_ref().split(',')) {
            options.set(option)?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), Failure> {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "allow_user_only" => self.allow_other = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            // times of reading are not kept, whatever is asked; the others mean nothing for a mount
            // that a daemon serves, but stand in every fstab
            ""
            | "defaults"
            | "auto"
            | "noauto"
            | "user"
            | "users"
            | "nouser"
            | "owner"
            | "group"
            | "_netdev"
            | "nofail"
            | "atime"
            | "noatime"
            | "relatime"
            | "norelatime"
            | "strictatime"
            | "lazytime"
            | "nodiratime"
            | "async"
            | "default_permissions" => {}
            other if other.starts_with("x-") || other.starts_with("comment=") => {}
            other => return self.set_value(other),
        }
        Ok(())
    }

    fn set_value(&mut self, option: &str) -> Result<(), Failure> {
        let unknown = || {
            Failure::new(
                format!("cannot use the mount option `{option}`"),
                "there is no such option",
            )
            .hint(
                "known: ro rw allow_other allow_user_only suid nosuid dev nodev exec noexec node=N",
            )
        };
        let Some(number) = option.strip_prefix("node=") else {
            return Err(unknown());
        };
        let number = number.parse().map_err(|_| {
            Failure::new(
                format!("cannot use the mount option `{option}`"),
                "the node is a number",
            )
        })?;
        self.node = Some(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_single_options_are_the_same_and_the_last_holds() {
        let one = MountOptions::parse(&["ro,allow_other,rw,noexec"]).unwrap();
        let many = MountOptions::parse(&["ro", "allow_other", "rw", "noexec"]).unwrap();
        assert_eq!(one, many);
        assert!(!one.read_only && one.allow_other && !one.exec);
    }

    #[test]
    fn what_fstab_has_is_accepted() {
        let options =
            MountOptions::parse(&["defaults,_netdev,nofail,x-systemd.automount,relatime,node=2"])
                .unwrap();
        assert_eq!(options.node, Some(2));
    }

    #[test]
    fn an_unknown_option_is_named() {
        let refused = MountOptions::parse(&["ro,bogus"]).unwrap_err();
        assert!(refused.what.contains("`bogus`"));
        assert!(MountOptions::parse(&["node=x"]).is_err());
    }
}
