//! PEM texts and their files: keys are written and demanded with mode 0600.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

use super::IdentityError;

/// The longest PEM file that is read: a chain of certificates is far shorter.
const FILE_LEN_MAX: u64 = 64 << 10;

fn at(path: &Path) -> impl FnOnce(io::Error) -> IdentityError + '_ {
    move |source| IdentityError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The text of a file that anybody may read.
pub(super) fn read(path: &Path) -> Result<String, IdentityError> {
    read_open(path, File::open(path).map_err(at(path))?)
}

/// The text of a key's file, refused when others may read it.
pub(super) fn read_key(path: &Path) -> Result<Zeroizing<String>, IdentityError> {
    let file = File::open(path).map_err(at(path))?;
    // of the open file, so that it cannot be exchanged between the check and the reading
    let mode = file.metadata().map_err(at(path))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::KeyIsReadable {
            path: path.to_owned(),
            mode,
        });
    }
    read_open(path, file).map(Zeroizing::new)
}

fn read_open(path: &Path, file: File) -> Result<String, IdentityError> {
    let mut text = String::new();
    file.take(FILE_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(at(path))?;
    Ok(text)
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    replace(path, text, 0o644).map_err(at(path))
}

pub(super) fn write_key(path: &Path, text: &str) -> Result<(), IdentityError> {
    replace(path, text, 0o600).map_err(at(path))
}

/// Writes beside the file, then renames over it: a crash leaves the old text or the new one.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

pub(super) fn certificate(
    what: &str,
    text: &str,
) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| IdentityError::NotPem {
        what: what.to_owned(),
    })
}

pub(super) fn key(what: &str, text: &str) -> Result<PrivateKeyDer<'static>, IdentityError> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| IdentityError::NotPem {
        what: what.to_owned(),
    })
}

/// PEM text of one object (RFC 7468: base64, 64 characters a line).
pub(super) fn encode(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let mut three = [0; 3];
            three[..group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for place in 0..4 {
                let sextet = (bits >> (18 - 6 * place)) & 63;
                let shown = place <= group.len();
                text.push(if shown {
                    char::from(ALPHABET[sextet as usize])
                } else {
                    '='
                });
            }
        }
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_read_back_at_every_length() {
        for len in 1..200_usize {
            let der: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let text = encode("CERTIFICATE", &der);
            assert_eq!(
                certificate("test", &text).unwrap().as_ref(),
                &der[..],
                "{len}"
            );
        }
    }
}
