//! `node.toml`: what one node is, in its data directory.
//!
//! Every fault of a file is reported at once, with the line that a person should look at.

use perigee_net::{Merging, NoMerging};
use perigee_proto::admin::Failure;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The longest name of a node or site, in bytes: that of a host name's label.
const NAME_BYTES_MAX: usize = 63;
/// Levels of logging, from few lines to many.
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The configuration of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The name that people see, unique in the cluster. No default.
    pub name: String,
    /// Where the node listens for its peers. No default.
    pub listen: SocketAddr,
    /// Where the control store listens. No default.
    pub control: SocketAddr,
    /// The site, where one is named: nodes of one are taken to be near to each other, and those of two to be apart, whatever
    /// is measured. None by default.
    pub site: Option<String>,
    /// Whether the node stores data, or only mounts. Default true.
    pub storage: bool,
    /// What is logged: `error`, `warn`, `info`, `debug` or `trace`; `info` by default.
    pub log: String,
    /// How messages that wait for one peer leave together: `adaptive` by default.
    pub merging: Merging,
}

/// Everything that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .faults.join("; "))]
pub struct ConfigError {
    /// One sentence each.
    pub faults: Vec<String>,
}

/// The keys, in the order in which they are written.
const KEYS: [&str; 7] = [
    "name", "listen", "control", "site", "storage", "log", "merging",
];

impl NodeConfig {
    /// Reads the file of a data directory.
    pub fn load(file: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot use the configuration `{}`", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| Failure::new(what(), error))?;
        Self::parse(&text).map_err(|error| {
            Failure::new(what(), error).hint(format!(
                "its keys are {}; see the comments that `perigee init` wrote",
                KEYS.join(", ")
            ))
        })
    }

    /// Reads and checks a configuration.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| ConfigError {
            faults: vec![syntax_fault(text, &error)],
        })?;
        let mut reader = Reader {
            table: &table,
            faults: Vec::new(),
        };
        reader.unknown_keys();
        let config = Self {
            name: reader.name("name"),
            listen: reader.address("listen"),
            control: reader.address("control"),
            site: reader.site("site"),
            storage: reader.switch("storage", true),
            log: reader.level("log"),
            merging: reader.merging("merging"),
        };
        if config.control.port() == 0 && reader.faults.is_empty() {
            reader
                .faults
                .push("`control` needs a port: it is where an existing store listens".to_owned());
        }
        match reader.faults {
            faults if faults.is_empty() => Ok(config),
            faults => Err(ConfigError { faults }),
        }
    }

    /// The file, with a comment for every key.
    pub fn render(&self) -> String {
        let quote = |text: &str| Value::String(text.to_owned()).to_string();
        let mut out =
            String::from("# A node of a Perigee cluster. Changes take effect at its next start.\n");
        let comments = [
            (
                "name, unique in the cluster; 1 to 63 letters, digits, `-`, `_`, `.`",
                quote(&self.name),
            ),
            (
                "address and port on which the node listens for its peers",
                quote(&self.listen.to_string()),
            ),
            (
                "address and port of the control store",
                quote(&self.control.to_string()),
            ),
            (
                "site: nodes of one are near to each other; \"\" (the default): round trips say what is near",
                quote(self.site.as_deref().unwrap_or_default()),
            ),
            (
                "store data here (true, the default), or only mount (false)",
                self.storage.to_string(),
            ),
            (
                "log level: error, warn, info (the default), debug, trace; $PERIGEE_LOG overrides it",
                quote(&self.log),
            ),
            (
                "how messages that wait for one peer leave together: \"adaptive\" (the default), \"off\", or how many wait \
                 for each other, such as \"4\"",
                quote(&self.merging.to_string()),
            ),
        ];
        for (key, (comment, value)) in KEYS.iter().zip(comments) {
            // writing to a string cannot fail
            let _ = write!(out, "\n# {comment}\n{key} = {value}\n");
        }
        out
    }

    /// Writes the file, to the disk; its directory exists. A crash leaves the old one or the new one.
    pub fn save(&self, file: &Path) -> Result<(), Failure> {
        let what = || format!("cannot write the configuration `{}`", file.display());
        let new = PathBuf::from(format!("{}.new", file.display()));
        std::fs::write(&new, self.render())
            .and_then(|()| std::fs::File::open(&new)?.sync_all())
            .and_then(|()| std::fs::rename(&new, file))
            .and_then(|()| std::fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all())
            .map_err(|error| Failure::new(what(), error))
    }
}

/// Whether `name` can be a node's or a site's.
pub fn check_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "is 1 to {NAME_BYTES_MAX} bytes long, not {}",
            name.len()
        ));
    }
    match name.chars().find(|c| !fine(*c)) {
        None => Ok(()),
        Some(c) => Err(format!("has letters, digits, `-`, `_` and `.`, not {c:?}")),
    }
}

fn syntax_fault(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.as_bytes()[..at]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
        + 1;
    format!("line {line}: {}", error.message().replace('\n', ", "))
}

struct Reader<'a> {
    table: &'a Table,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn unknown_keys(&mut self) {
        for key in self
            .table
            .keys()
            .filter(|key| !KEYS.contains(&key.as_str()))
        {
            self.faults.push(format!("`{key}` is no key"));
        }
    }

    fn fault(&mut self, key: &str, fault: &str) {
        self.faults.push(format!("`{key}` {fault}"));
    }

    fn text(&mut self, key: &str, default: Option<&str>) -> Option<String> {
        match (self.table.get(key), default) {
            (Some(Value::String(text)), _) => Some(text.clone()),
            (Some(other), _) => {
                self.fault(key, &format!("is a text in quotes, not {}", kind(other)));
                None
            }
            (None, Some(default)) => Some(default.to_owned()),
            (None, None) => {
                self.fault(key, "is missing");
                None
            }
        }
    }

    fn name(&mut self, key: &str) -> String {
        let Some(name) = self.text(key, None) else {
            return String::new();
        };
        if let Err(fault) = check_name(&name) {
            self.fault(key, &fault);
        }
        name
    }

    /// A name that need not be given; an empty one is none.
    fn site(&mut self, key: &str) -> Option<String> {
        let site = self.text(key, Some(""))?;
        if site.is_empty() {
            return None;
        }
        if let Err(fault) = check_name(&site) {
            self.fault(key, &fault);
        }
        Some(site)
    }

    fn address(&mut self, key: &str) -> SocketAddr {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let Some(text) = self.text(key, None) else {
            return nowhere;
        };
        text.parse().unwrap_or_else(|_| {
            self.fault(
                key,
                &format!("is an address and a port, as \"10.0.0.4:7400\", not \"{text}\""),
            );
            nowhere
        })
    }

    fn switch(&mut self, key: &str, default: bool) -> bool {
        match self.table.get(key) {
            None => default,
            Some(Value::Boolean(value)) => *value,
            Some(other) => {
                self.fault(key, &format!("is true or false, not {}", kind(other)));
                default
            }
        }
    }

    fn level(&mut self, key: &str) -> String {
        let Some(level) = self.text(key, Some("info")) else {
            return String::new();
        };
        if !LOG_LEVELS.contains(&level.as_str()) {
            self.fault(
                key,
                &format!("is one of {}, not \"{level}\"", LOG_LEVELS.join(", ")),
            );
        }
        level
    }

    fn merging(&mut self, key: &str) -> Merging {
        let Some(text) = self.text(key, Some("adaptive")) else {
            return Merging::default();
        };
        text.parse().unwrap_or_else(|fault: NoMerging| {
            self.fault(key, &fault.to_string());
            Merging::default()
        })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a time",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> NodeConfig {
        NodeConfig {
            name: "node-1".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7401)),
            control: SocketAddr::from(([127, 0, 0, 1], 7400)),
            site: Some("lab".to_owned()),
            storage: false,
            log: "debug".to_owned(),
            merging: Merging::Fixed(4),
        }
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        assert_eq!(NodeConfig::parse(&sample().render()), Ok(sample()));
    }

    #[test]
    fn what_has_a_default_may_be_left_out() {
        let text = "name = 'a'\nlisten = '[::1]:1'\ncontrol = '10.0.0.1:7'";
        let config = NodeConfig::parse(text).unwrap();
        assert_eq!(
            (config.site, config.storage, config.log.as_str()),
            (None, true, "info")
        );
    }

    #[test]
    fn all_faults_are_listed_at_once() {
        let text = "name = 'a b'\nlisten = 'here'\nstorage = 'yes'\nlog = 'loud'\nlisen = 1\nsite = 7\nmerging = '1'";
        let faults = NodeConfig::parse(text).unwrap_err().faults;
        for key in [
            "name", "listen", "control", "storage", "log", "lisen", "site", "merging",
        ] {
            assert!(
                faults.iter().any(|f| f.starts_with(&format!("`{key}`"))),
                "{key}: {faults:?}"
            );
        }
        assert_eq!(faults.len(), 8);
    }

    #[test]
    fn broken_syntax_names_its_line() {
        let faults = NodeConfig::parse("name = 'a'\nlisten = = 3\n")
            .unwrap_err()
            .faults;
        assert!(faults[0].starts_with("line 2: "), "{faults:?}");
        assert_eq!(faults.len(), 1);
    }

    #[test]
    fn names_are_safe_to_print_and_to_put_in_a_path() {
        assert!(check_name("node-1.site_a").is_ok());
        for bad in ["", "a/b", "a b", "a\u{1b}[2J", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fuzz_configurations() {
        let text = "name = 'n1'\nlisten = '10.0.0.1:7400'\ncontrol = '10.0.0.1:7401'\nsite = 'north'\nlog = 'info'\n";
        perigee_fuzz::assault("perigee::NodeConfig", &[text.into()], |bytes| {
            NodeConfig::parse(&String::from_utf8_lossy(bytes)).into()
        });
    }
}
