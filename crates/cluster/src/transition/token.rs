//! Join tokens: each lets in one node, for a short time.

use super::{PlanError, Planned};
use crate::codec::Record;
use crate::directory::{Directory, Known};
use crate::key;
use crate::model::{Admits, Token, TokenUse};
use crate::store::Txn;
use perigee_types::WallTime;

/// Writes down a new join token.
///
/// # Errors
/// [`PlanError::TokenExists`].
pub fn create_token(
    dir: &Directory,
    hash: [u8; 32],
    expires: WallTime,
    admits: Admits,
) -> Result<Planned<Token>, PlanError> {
    if dir.tokens.contains_key(&hash) {
        return Err(PlanError::TokenExists);
    }
    let made = Token {
        hash,
        expires,
        used_by: None,
        admits,
    };
    let txn = Txn::default()
        .when(key::token(&hash), None)
        .put(key::token(&hash), made.encode());
    Ok(Planned { txn, made })
}

/// Spends a token on `used_by`.
///
/// # Errors
/// It is not known, has expired, or was used.
pub fn use_token(
    dir: &Directory,
    hash: [u8; 32],
    used_by: TokenUse,
    now: WallTime,
) -> Result<Planned<Token>, PlanError> {
    let known = dir.tokens.get(&hash).ok_or(PlanError::UnknownToken)?;
    if let Some(used) = &known.record.used_by {
        return Err(PlanError::TokenUsed { node: used.node });
    }
    if now >= known.record.expires {
        return Err(PlanError::TokenExpired);
    }
    let made = Token {
        used_by: Some(used_by),
        ..known.record.clone()
    };
    let txn = Txn::default()
        .when(key::token(&hash), Some(known.revision))
        .put(key::token(&hash), made.encode());
    Ok(Planned { txn, made })
}

/// Forgets tokens that have been void since before `before`, used ones too.
#[must_use]
pub fn forget_tokens(dir: &Directory, before: WallTime) -> Planned<usize> {
    let mut txn = Txn::default();
    let old = |known: &&Known<Token>| known.record.expires < before;
    for known in dir.tokens.values().filter(old).take(64) {
        let at = key::token(&known.record.hash);
        txn = txn.when(at.clone(), Some(known.revision)).delete(at);
    }
    let made = txn.writes.len();
    Planned { txn, made }
}
