//! The messages, a file per group.

pub mod chain;
pub mod data;
pub mod file;
pub mod hold;
pub mod past;
pub mod report;
pub mod session;
pub mod tx;
