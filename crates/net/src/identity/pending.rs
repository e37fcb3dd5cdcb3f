//! A key whose certificate was asked for and has not come yet.
//!
//! The authority answers the very same request with the very same certificate. So key and request are on
//! disk before anybody is asked: a process that dies before it has its certificate can ask again.

use super::{IdentityError, NodeKey, pem};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Its file, beside those of the identity.
const FILE: &str = "joining.pem";
/// Where the second part of the file begins.
const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----";

/// A key and the request to certify it, on disk. `Debug` does not show the key.
#[derive(Debug)]
pub struct PendingKey {
    path: PathBuf,
    key: NodeKey,
    request: String,
}

impl PendingKey {
    /// Makes a key and its request, and puts both on the disk of `directory`, with mode 0600.
    ///
    /// # Errors
    /// No random bytes, or the file cannot be written.
    pub fn create(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(FILE);
        let key = NodeKey::generate()?;
        let request = key.request()?;
        let mut text = Zeroizing::new(pem::encode("PRIVATE KEY", &key.to_der()));
        text.push_str(&request);
        pem::write_key(&path, &text)?;
        Ok(Self { path, key, request })
    }

    /// What an earlier process left in `directory`; `None` when it left nothing.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or it is damaged.
    pub fn load(directory: &Path) -> Result<Option<Self>, IdentityError> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = pem::read_key(&path)?;
        let damaged = || IdentityError::NotPem {
            what: path.display().to_string(),
        };
        let at = text.find(REQUEST).ok_or_else(damaged)?;
        let (key, request) = text.split_at(at);
        let key = NodeKey::from_pem(key).ok_or_else(damaged)?;
        let request = request.to_owned();
        Ok(Some(Self { path, key, request }))
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// The request (PKCS #10, PEM): the same text each time.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// Removes the file: the certificate is in its place, or will never be asked for again.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(self) -> Result<(), IdentityError> {
        std::fs::remove_file(&self.path).map_err(|source| IdentityError::Io {
            path: self.path,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_very_same_request_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert!(PendingKey::load(dir.path()).unwrap().is_none());
        let made = PendingKey::create(dir.path()).unwrap();
        let found = PendingKey::load(dir.path()).unwrap().unwrap();
        assert_eq!(found.request(), made.request());
        assert_eq!(found.key().to_der(), made.key().to_der());
        found.forget().unwrap();
        assert!(PendingKey::load(dir.path()).unwrap().is_none());
    }

    #[test]
    fn a_damaged_file_and_one_that_others_may_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        PendingKey::create(dir.path()).unwrap();
        let path = dir.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let open = PendingKey::load(dir.path()).unwrap_err();
        assert!(matches!(open, IdentityError::KeyIsReadable { .. }));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for part in ["", &text[..40], &text[text.find(REQUEST).unwrap()..]] {
            fs::write(&path, part).unwrap();
            let damaged = PendingKey::load(dir.path()).unwrap_err();
            assert!(matches!(damaged, IdentityError::NotPem { .. }), "{part}");
        }
    }
}
