//! Where an etcd is, as people write it: `etcd://HOST:PORT[,HOST:PORT...]`, or `etcds://` for TLS.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The most members that are named. An etcd has seven at most, as its makers advise.
const HOSTS_MAX: usize = 16;
/// The longest name of a host.
const NAME_LEN_MAX: usize = 253;
/// Before the hosts of an etcd that is spoken to in plain text.
const PLAIN: &str = "etcd://";
/// Before the hosts of an etcd that is spoken to over TLS.
const TLS: &str = "etcds://";

/// Text that does not say where an etcd is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It begins with something else.
    #[error(
        "an etcd is named as `{PLAIN}HOST:PORT` or `{TLS}HOST:PORT`, with commas between several"
    )]
    NotEtcd,
    /// One of the hosts is not a name or an address with a port.
    #[error("`{host}` is no HOST:PORT")]
    BadHost {
        /// Its beginning.
        host: String,
    },
    /// More hosts than any etcd has.
    #[error("{hosts} hosts are more than the {HOSTS_MAX} that an etcd can have here")]
    TooMany {
        /// How many.
        hosts: usize,
    },
    /// Whoever is on the way could read and change the cluster's record.
    #[error("`{host}` is another machine, to which nothing is said in plain text")]
    PlainTextAbroad {
        /// The host.
        host: String,
    },
}

/// A member of an etcd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// Its name or address, without brackets.
    pub name: String,
    /// Where it serves clients.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            return write!(f, "[{}]:{}", self.name, self.port);
        }
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Whether what is said can be read on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// It can: only within one machine.
    Plain,
    /// TLS, with a certificate on both sides.
    Tls,
}

/// Where an etcd is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Place {
    secrecy: Secrecy,
    hosts: Vec<Host>,
}

impl Place {
    /// Whether TLS is spoken.
    #[must_use]
    pub fn secrecy(&self) -> Secrecy {
        self.secrecy
    }

    /// Its members, at least one.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.secrecy {
            Secrecy::Plain => PLAIN,
            Secrecy::Tls => TLS,
        })?;
        for (at, host) in self.hosts.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            write!(f, "{host}")?;
        }
        Ok(())
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let (secrecy, hosts) = match (text.strip_prefix(PLAIN), text.strip_prefix(TLS)) {
            (Some(hosts), _) => (Secrecy::Plain, hosts),
            (None, Some(hosts)) => (Secrecy::Tls, hosts),
            (None, None) => return Err(PlaceError::NotEtcd),
        };
        let count = hosts.split(',').count();
        if count > HOSTS_MAX {
            return Err(PlaceError::TooMany { hosts: count });
        }
        let mut read = Vec::with_capacity(count);
        for text in hosts.split(',') {
            let host = host(text)?;
            // A name may turn out to be another machine's only when it is looked up: see `connection`.
            let abroad = host
                .name
                .parse::<IpAddr>()
                .is_ok_and(|ip| !ip.is_loopback());
            if secrecy == Secrecy::Plain && abroad {
                let host = host.to_string();
                return Err(PlaceError::PlainTextAbroad { host });
            }
            if !read.contains(&host) {
                read.push(host);
            }
        }
        Ok(Self {
            secrecy,
            hosts: read,
        })
    }
}

fn host(text: &str) -> Result<Host, PlaceError> {
    let bad = || PlaceError::BadHost {
        host: text.chars().take(64).collect(),
    };
    let (name, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
    let name = match name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
    {
        Some(name) if name.parse::<std::net::Ipv6Addr>().is_ok() => name,
        Some(_) => return Err(bad()),
        None => name,
    };
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_name = !name.is_empty() && name.len() <= NAME_LEN_MAX && name.chars().all(fine);
    if !is_name && name.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(bad());
    }
    // Without brackets the last group of an IPv6 address would be taken for a port.
    if name.contains(':') && !text.starts_with('[') {
        return Err(bad());
    }
    let name = name.to_owned();
    Ok(Host { name, port })
}

impl TryFrom<String> for Place {
    type Error = PlaceError;

    fn try_from(text: String) -> Result<Self, PlaceError> {
        text.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back_as_they_are_written() {
        for text in [
            "etcd://127.0.0.1:2379",
            "etcd://localhost:2379,[::1]:22379",
            "etcds://a.example:2379,10.0.0.2:2379,[fd00::3]:2379",
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        let twice: Place = "etcd://localhost:1,localhost:1".parse().unwrap();
        assert_eq!(twice.hosts().len(), 1);
    }

    #[test]
    fn what_is_no_place_is_refused_with_a_reason() {
        for text in [
            "",
            "http://127.0.0.1:2379",
            "etcd://",
            "etcd://host",
            "etcd://host:0",
            "etcd://host:99999",
            "etcd://a b:1",
            "etcd://a:1,,b:1",
            "etcd://::1:2379",
            "etcd://[a]:1",
            "etcds://a/b:1",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        let many = format!("etcd://{}", vec!["a:1"; 17].join(","));
        assert_eq!(
            many.parse::<Place>(),
            Err(PlaceError::TooMany { hosts: 17 })
        );
    }

    #[test]
    fn nothing_is_said_to_another_machine_in_plain_text() {
        let abroad = "etcd://127.0.0.1:1,10.0.0.4:2379".parse::<Place>();
        assert_eq!(
            abroad,
            Err(PlaceError::PlainTextAbroad {
                host: "10.0.0.4:2379".to_owned()
            })
        );
        assert!("etcds://10.0.0.4:2379".parse::<Place>().is_ok());
    }
}
