//! Bytes from memory to memory over one stream, whose other end does what it is asked.

use std::io::{ErrorKind, Read, Result, Write};

/// Bytes of one write, and of one read.
pub(crate) const PIECE: usize = 1 << 20;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    /// To the other end.
    Up = 1,
    /// From it.
    Down = 2,
}

/// Moves so many bytes; those that go up have arrived when it returns.
pub(crate) fn pass(stream: &mut (impl Read + Write), way: Way, bytes: u64) -> Result<()> {
    let mut request = [0; 9];
    request[0] = way as u8;
    request[1..].copy_from_slice(&bytes.to_be_bytes());
    stream.write_all(&request)?;
    stream.flush()?;
    match way {
        Way::Up => give(stream, bytes).and_then(|()| take(stream, 1)),
        Way::Down => take(stream, bytes),
    }
}

/// Does what it is asked until the stream ends.
pub(crate) fn serve(stream: &mut (impl Read + Write)) -> Result<()> {
    let mut request = [0; 9];
    while stream.read_exact(&mut request).is_ok() {
        let [way, bytes @ ..] = request;
        let bytes = u64::from_be_bytes(bytes);
        if way == Way::Up as u8 {
            take(stream, bytes)?;
            give(stream, 1)?;
        } else {
            give(stream, bytes)?;
        }
    }
    Ok(())
}

fn give(stream: &mut impl Write, bytes: u64) -> Result<()> {
    let piece = vec![0x5a; PIECE];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(PIECE as u64);
        stream.write_all(&piece[..len as usize])?;
        left -= len;
    }
    stream.flush()
}

fn take(stream: &mut impl Read, bytes: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(PIECE as u64) as usize;
        match stream.read(&mut piece[..len])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    Ok(())
}
