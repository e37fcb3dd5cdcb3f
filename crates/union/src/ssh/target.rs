//! What a command line names: directories of this host and of others.

use std::fmt;

/// A host, as `ssh` takes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// `host` or `user@host`; a name of the user's SSH configuration, too.
    pub name: String,
    /// Where not the usual one.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A directory, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// None: here.
    pub host: Option<Host>,
    /// As written; relative ones begin at the home of the far user, or where the command runs.
    pub directory: Vec<u8>,
}

/// Why a word names no directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotATarget {
    /// There is nothing before the colon.
    #[error("`{0}` has no host before the colon")]
    NoHost(String),
    /// `ssh` would take it for an option.
    #[error("`{0}` begins with `-`")]
    Option(String),
    /// Not between 1 and 65535.
    #[error("`{0}` has a port that is none")]
    Port(String),
}

/// Reads `[[user@]host[:port]:]directory`. A word with a `/` before its first colon names a directory of this host.
///
/// # Errors
/// [`NotATarget`].
pub fn parse(word: &str) -> Result<Target, NotATarget> {
    if word.starts_with('-') {
        return Err(NotATarget::Option(word.to_owned()));
    }
    // An address of version 6 has colons of its own.
    let after = match word.find('[') {
        Some(open) if !word[..open].contains(['/', ':']) => {
            word[open..].find(']').map_or(0, |close| open + close)
        }
        _ => 0,
    };
    let colon = word[after..].find(':').map(|at| after + at);
    let Some(colon) = colon.filter(|at| !word[..*at].contains('/')) else {
        return Ok(Target {
            host: None,
            directory: word.as_bytes().to_vec(),
        });
    };
    let (name, mut rest) = (&word[..colon], &word[colon + 1..]);
    let mut port = None;
    if let Some((digits, directory)) = rest.split_once(':')
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        let number: u16 = digits
            .parse()
            .map_err(|_| NotATarget::Port(word.to_owned()))?;
        if number == 0 {
            return Err(NotATarget::Port(word.to_owned()));
        }
        (port, rest) = (Some(number), directory);
    }
    let name = name.replace(['[', ']'], "");
    if name.is_empty() || name.ends_with('@') || name.starts_with('@') {
        return Err(NotATarget::NoHost(word.to_owned()));
    }
    Ok(Target {
        host: Some(Host { name, port }),
        directory: if rest.is_empty() {
            b".".to_vec()
        } else {
            rest.as_bytes().to_vec()
        },
    })
}

/// The words of a list with one on each line; `#` begins a comment.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines();
    let words = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far(name: &str, port: Option<u16>, directory: &str) -> Target {
        Target {
            host: Some(Host {
                name: name.to_owned(),
                port,
            }),
            directory: directory.as_bytes().to_vec(),
        }
    }

    #[test]
    fn words_name_what_people_mean() {
        let here = |directory: &str| Target {
            host: None,
            directory: directory.as_bytes().to_vec(),
        };
        for (word, target) in [
            ("h:/data", far("h", None, "/data")),
            ("u@h:data", far("u@h", None, "data")),
            ("h:", far("h", None, ".")),
            ("u@h:2222:/d", far("u@h", Some(2222), "/d")),
            ("h:/a:b", far("h", None, "/a:b")),
            ("u@[fe80::1]:/d", far("u@fe80::1", None, "/d")),
            ("[::1]:22:/d", far("::1", Some(22), "/d")),
            ("/data", here("/data")),
            ("./a:b", here("./a:b")),
            ("data", here("data")),
        ] {
            assert_eq!(parse(word), Ok(target), "{word}");
        }
        for bad in [
            "-oProxyCommand=x:/d",
            ":/d",
            "u@:/d",
            "h:70000:/d",
            "h:0:/d",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let lines: Vec<&str> = lines("# hosts\n h:/d # the first\n\n/e\n").collect();
        assert_eq!(lines, ["h:/d", "/e"]);
    }
}
