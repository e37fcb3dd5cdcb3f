//! The join token: what a new node needs to find a cluster, to know that it is the right one, and to be let in.
//!
//! Text form: `pgt1.` and hexadecimal digits of expiry (8 bytes), cluster (16), fingerprint of the certificate
//! authority (32), secret (32), addresses (one length byte and text each), and the first 4 bytes of the SHA-256 of all
//! that, which finds typing errors before anything is sent. Numbers are little-endian.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use zeroize::Zeroizing;

use super::{ClusterId, Fingerprint};
use crate::crypto::{self, NoRandomness};

const PREFIX: &str = "pgt1.";
const CHECK_LEN: usize = 4;
/// Addresses in one token: enough for every replica of a control store.
const ADDRESSES_MAX: usize = 8;
/// Characters of the longest token.
const TEXT_LEN_MAX: usize = 2048;

/// A single-use permission to join one cluster. `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Where to ask; tried in order.
    pub addresses: Vec<SocketAddr>,
    /// The cluster.
    pub cluster: ClusterId,
    /// The certificate authority that whoever answers must belong to.
    pub fingerprint: Fingerprint,
    /// When the token stops working, in seconds since 1970 (UTC).
    pub expires: u64,
    secret: Zeroizing<[u8; 32]>,
}

/// What the control store keeps of a token's secret: enough to recognize it, not to make it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// Whether `secret` is the one that this is the hash of.
    #[must_use]
    pub fn matches(&self, secret: &[u8]) -> bool {
        crypto::equal_in_constant_time(&self.0, &crypto::sha256(secret))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretHash({})", crypto::to_hex(&self.0))
    }
}

/// Why text is no join token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin with `pgt1.`.
    #[error("a join token begins with `pgt1.`")]
    NotAToken,
    /// A token of a later version.
    #[error("the join token is of version `{version}`, this binary knows `pgt1`")]
    UnknownVersion {
        /// What it begins with.
        version: String,
    },
    /// It has characters missing, added or changed.
    #[error("the join token is damaged: copy it again, whole and on one line")]
    Damaged,
    /// It has no address, or too many.
    #[error("a join token holds 1 to {ADDRESSES_MAX} addresses, not {count}")]
    Addresses {
        /// How many.
        count: usize,
    },
}

impl JoinToken {
    /// A new token with a random secret.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(
        addresses: Vec<SocketAddr>,
        cluster: ClusterId,
        fingerprint: Fingerprint,
        expires: u64,
    ) -> Result<Self, NoRandomness> {
        Ok(Self {
            addresses,
            cluster,
            fingerprint,
            expires,
            secret: Zeroizing::new(crypto::random()?),
        })
    }

    /// The secret, to be sent over the joining connection and nowhere else.
    #[must_use]
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// What the control store keeps.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash(crypto::sha256(&*self.secret))
    }

    /// Whether the token no longer works at `now` (seconds since 1970).
    #[must_use]
    pub fn is_expired(&self, now: u64) -> bool {
        now >= self.expires
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("addresses", &self.addresses)
            .field("cluster", &self.cluster)
            .field("fingerprint", &self.fingerprint)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// The text form, secret included: print it for the user who asked for it, never into a log.
impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Zeroizing::new(Vec::new());
        bytes.extend_from_slice(&self.expires.to_le_bytes());
        bytes.extend_from_slice(&self.cluster.0.to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint.0);
        bytes.extend_from_slice(&*self.secret);
        for address in &self.addresses {
            let text = address.to_string();
            // the text of a socket address has fewer than 64 characters
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        let check = crypto::sha256(&bytes);
        bytes.extend_from_slice(&check[..CHECK_LEN]);
        write!(f, "{PREFIX}{}", *Zeroizing::new(crypto::to_hex(&bytes)))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let Some(digits) = text.strip_prefix(PREFIX) else {
            return Err(match text.split_once('.') {
                Some((version, _)) if version.starts_with("pgt") && version.len() < 8 => {
                    TokenError::UnknownVersion {
                        version: version.to_owned(),
                    }
                }
                _ => TokenError::NotAToken,
            });
        };
        if text.len() > TEXT_LEN_MAX {
            return Err(TokenError::Damaged);
        }
        let bytes = crypto::from_hex(digits).ok_or(TokenError::Damaged)?;
        let bytes = Zeroizing::new(bytes);
        let (content, check) = bytes
            .split_last_chunk::<CHECK_LEN>()
            .ok_or(TokenError::Damaged)?;
        if crypto::sha256(content)[..CHECK_LEN] != *check {
            return Err(TokenError::Damaged);
        }
        parse_content(content).ok_or(TokenError::Damaged)?
    }
}

/// `None` when the content ends early or holds a malformed address.
fn parse_content(content: &[u8]) -> Option<Result<JoinToken, TokenError>> {
    let (expires, rest) = content.split_first_chunk::<8>()?;
    let (cluster, rest) = rest.split_first_chunk::<16>()?;
    let (fingerprint, rest) = rest.split_first_chunk::<32>()?;
    let (secret, mut rest) = rest.split_first_chunk::<32>()?;
    let mut addresses = Vec::new();
    while let Some((len, after)) = rest.split_first() {
        let (address, after) = after.split_at_checked(usize::from(*len))?;
        addresses.push(std::str::from_utf8(address).ok()?.parse().ok()?);
        rest = after;
    }
    if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
        return Some(Err(TokenError::Addresses {
            count: addresses.len(),
        }));
    }
    Some(Ok(JoinToken {
        addresses,
        cluster: ClusterId(u128::from_le_bytes(*cluster)),
        fingerprint: Fingerprint(*fingerprint),
        expires: u64::from_le_bytes(*expires),
        secret: Zeroizing::new(*secret),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> JoinToken {
        JoinToken::new(
            vec![
                "10.0.0.4:7000".parse().unwrap(),
                "[::1]:7001".parse().unwrap(),
            ],
            ClusterId(77),
            Fingerprint([9; 32]),
            1_900_000_000,
        )
        .unwrap()
    }

    #[test]
    fn text_form_round_trips() {
        let token = sample();
        assert_eq!(format!(" {token}\n").parse(), Ok(token));
    }

    #[test]
    fn every_changed_or_missing_character_is_found() {
        let text = sample().to_string();
        for at in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(
                changed.parse::<JoinToken>(),
                Err(TokenError::Damaged),
                "at {at}"
            );
            assert_eq!(
                text[..at].parse::<JoinToken>(),
                Err(TokenError::Damaged),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!("".parse::<JoinToken>(), Err(TokenError::NotAToken));
        assert_eq!("hello".parse::<JoinToken>(), Err(TokenError::NotAToken));
        assert_eq!(
            "pgt2.00".parse::<JoinToken>(),
            Err(TokenError::UnknownVersion {
                version: "pgt2".to_owned()
            })
        );
        let mut token = sample();
        token.addresses.clear();
        assert_eq!(
            token.to_string().parse::<JoinToken>(),
            Err(TokenError::Addresses { count: 0 })
        );
    }

    #[test]
    fn the_secret_is_recognized_by_its_hash_and_not_shown_by_debug() {
        let (token, other) = (sample(), sample());
        assert!(token.secret_hash().matches(token.secret()));
        assert!(!token.secret_hash().matches(other.secret()));
        assert!(!format!("{token:?}").contains(&crypto::to_hex(token.secret())));
    }

    #[test]
    fn expires_at_its_second() {
        let token = sample();
        assert!(!token.is_expired(token.expires - 1));
        assert!(token.is_expired(token.expires));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "(pgt1\\.)?[0-9a-fé]{0,400}") {
            _ = text.parse::<JoinToken>();
        }
    }

    #[test]
    fn fuzz_tokens() {
        let text = sample().to_string();
        let bytes = crypto::from_hex(text.strip_prefix(PREFIX).unwrap()).unwrap();
        let content = bytes[..bytes.len() - CHECK_LEN].to_vec();
        perigee_fuzz::assault("net::JoinToken content", &[content], |bytes| {
            parse_content(bytes).and_then(Result::ok).into()
        });
        perigee_fuzz::assault("net::JoinToken", &[text.into_bytes()], |bytes| {
            String::from_utf8_lossy(bytes).parse::<JoinToken>().into()
        });
    }
}
