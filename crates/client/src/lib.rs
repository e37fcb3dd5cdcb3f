//! x
pub mod fs;
