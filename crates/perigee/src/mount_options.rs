//! Mount options, as in `-o ro,allow_other`: those of the gateway, and which node serves the mount.

use perigee_gateway::fuse::MountOptions;
use perigee_proto::admin::Failure;

/// Options as the command line takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How the file system is mounted.
    pub mount: MountOptions,
    /// `node=N`: the node that serves the mount, where the source is a cluster directory.
    pub node: Option<u32>,
    /// The options without `node=N`, which only the command line understands.
    pub texts: Vec<String>,
}

impl Options {
    /// The defaults.
    pub fn none() -> Result<Self, Failure> {
        Self::parse::<&str>(&[])
    }

    /// Reads options, each of which may be a list with commas. The last of two that disagree holds.
    ///
    /// Errors: the first option that Perigee does not know.
    pub fn parse<S: AsRef<str>>(lists: &[S]) -> Result<Self, Failure> {
        let mut node = None;
        let mut texts = Vec::new();
        for option in lists.iter().flat_map(|list| list.as_ref().split(',')) {
            match option.trim().strip_prefix("node=") {
                None => texts.push(option.trim().to_owned()),
                Some(number) => {
                    let number = number.parse().map_err(|_| {
                        refused(format!(
                            "mount option `{option}` takes the number of a node"
                        ))
                    })?;
                    node = Some(number);
                }
            }
        }
        let mount = MountOptions::parse(texts.iter().map(String::as_str)).map_err(refused)?;
        Ok(Self { mount, node, texts })
    }
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::new("cannot use the mount options", why)
        .hint("`perigee mount --help` lists the options")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_single_options_are_the_same_and_the_last_holds() {
        let one = Options::parse(&["ro,allow_other,rw,noexec"]).unwrap();
        let many = Options::parse(&["ro", "allow_other", "rw", "noexec"]).unwrap();
        assert_eq!(one, many);
        assert!(!one.mount.read_only && !one.mount.exec);
    }

    #[test]
    fn what_fstab_has_is_accepted_and_the_node_is_taken_out() {
        let options =
            Options::parse(&["defaults,_netdev,nofail,x-systemd.automount,relatime,node=2"])
                .unwrap();
        assert_eq!(options.node, Some(2));
        assert!(options.texts.iter().all(|text| !text.starts_with("node")));
    }

    #[test]
    fn an_unknown_option_is_named() {
        let refused = Options::parse(&["ro,bogus"]).unwrap_err();
        assert!(refused.why.contains("`bogus`"));
        assert!(Options::parse(&["node=x"]).is_err());
    }
}
