//! The fields of a message, one after the other; `None` where it ends too early.

/// What is left of a message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_ne_bytes(*field))
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.u32().map(u32::cast_signed)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_ne_bytes(*field))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(field)
    }

    /// Up to the next NUL, which is skipped.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let len = self.rest.iter().position(|&byte| byte == 0)?;
        let name = self.bytes(len)?;
        self.bytes(1)?;
        Some(name)
    }
}
